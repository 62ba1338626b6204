//! The file of new and of silent endpoints, so that a restarted process does not treat them as others, and other commands see
//! them.
//!
//! The kernel has only their weights, which do not tell why they are small.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::chore::{Chore, Round};
use crate::cluster::model::{ObjectName, ServicePortName};
use crate::dataplane::Dataplane;
use crate::reconcile::{Newcomers, Proxier, Silence, Start};

/// The shortest time between two writes, each of which is of the whole file. Tenants choose how often it changes.
const PAUSE: Duration = Duration::from_secs(3);

/// The most new and the most silent endpoints in the file, of about 100 bytes each: tenants choose their number. After a
/// restart, those beyond have their whole weights.
const MOST: usize = 10_000;

/// Writes the file when an endpoint begins or ceases to be new or silent, but at most once per [`PAUSE`], and at the end of
/// the process.
#[derive(Debug)]
pub(crate) struct StandingsFile {
    path: PathBuf,
    /// The revision that the file has.
    written: u64,
    /// When it may be written again, in time since boot.
    next: Duration,
    /// Whether it waits for that.
    is_waiting: bool,
    is_failing: bool,
}

/// An endpoint, as the file has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// `namespace/name`.
    service: String,
    address: IpAddr,
    /// In milliseconds since boot.
    until: u64,
    what: What,
}

/// What the endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum What {
    /// New, with a smaller weight.
    Slow,
    /// New, with its whole weight.
    Whole,
    /// Silent.
    Silent,
}

impl StandingsFile {
    /// Returns the file at `path`. It needs not exist.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            written: 0,
            next: Duration::ZERO,
            is_waiting: false,
            is_failing: false,
        }
    }

    /// Reads what an earlier process knew and is still true at `now`, in time since boot; nothing if the file does not exist
    /// or cannot be read.
    pub(crate) fn read(path: &Path, now: Duration) -> (Newcomers, Silence) {
        let lines = std::fs::read(path)
            .and_then(|text| serde_json::from_slice::<Vec<Line>>(&text).map_err(io::Error::from));
        let lines = lines.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let path = path.display();
                tracing::warn!(
                    "{path}: {error}; new and silent endpoints have their whole weights"
                );
            }
            Vec::new()
        });
        let (silent, new): (Vec<Line>, Vec<Line>) = lines
            .into_iter()
            .filter(|line| line.until() > now)
            .partition(|line| line.what == What::Silent);
        let new = new.iter().map(|line| {
            let start = Start {
                until: line.until(),
                is_slow: line.what == What::Slow,
            };
            (line.service(), line.address, start)
        });
        let silent = silent.iter();
        let silent = silent.map(|line| (line.service(), line.address, line.until()));
        (Newcomers::remembering(new), Silence::remembering(silent))
    }

    fn write(&self, newcomers: &Newcomers, silence: &Silence) -> io::Result<()> {
        let new = newcomers.all().take(MOST).map(|(service, address, start)| {
            let what = if start.is_slow {
                What::Slow
            } else {
                What::Whole
            };
            Line::new(service, address, (start.until, what))
        });
        let silent = silence.all().take(MOST);
        let silent = silent
            .map(|(service, address, until)| Line::new(service, address, (until, What::Silent)));
        let text = serde_json::to_vec(&new.chain(silent).collect::<Vec<Line>>())?;
        // Renamed, so that a reader finds a whole file.
        let written = unfinished(&self.path);
        std::fs::write(&written, text)?;
        std::fs::rename(written, &self.path)
    }

    /// Removes the file at `path`, and what a process left that was killed while it wrote, as far as they exist.
    pub(crate) fn remove(path: &Path) {
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(unfinished(path));
    }
}

/// Returns the file that takes the place of that at `path` when it is whole.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("standings-new")
}

impl Line {
    fn new(service: &ObjectName, address: IpAddr, (until, what): (Duration, What)) -> Self {
        Self {
            service: service.to_string(),
            address,
            until: u64::try_from(until.as_millis()).unwrap_or(u64::MAX),
            what,
        }
    }

    fn service(&self) -> ObjectName {
        ServicePortName::from(self.service.as_str()).service
    }

    fn until(&self) -> Duration {
        Duration::from_millis(self.until)
    }
}

impl<D: Dataplane> Chore<D> for StandingsFile {
    fn due(&self) -> Option<Duration> {
        self.is_waiting.then_some(self.next)
    }

    fn after(&mut self, round: &Round<'_, D>) {
        self.keep(round.proxier.learnt(), round.now);
    }

    fn stop(&mut self, proxier: &Proxier<D>) {
        self.keep(proxier.learnt(), self.next);
    }
}

impl StandingsFile {
    /// Writes the file if it differs and may be written at `now`.
    fn keep(&mut self, (newcomers, silence): (&Newcomers, &Silence), now: Duration) {
        // Both only increase.
        let revision = newcomers.revision() + silence.revision();
        self.is_waiting = revision != self.written && now < self.next;
        if revision == self.written || self.is_waiting {
            return;
        }
        self.next = now + PAUSE;
        match self.write(newcomers, silence) {
            Ok(()) => {
                self.written = revision;
                self.is_failing = false;
            }
            Err(error) if !self.is_failing => {
                let path = self.path.display();
                tracing::warn!(
                    "{path} cannot be written: {error}; after a restart, new and silent endpoints have their whole \
                     weights"
                );
                self.is_failing = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn new_and_silent_endpoints_are_read_as_written_and_a_damaged_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = StandingsFile::new(directory.path().join("state.standings"));
        let web = || ObjectName::new("default", "web");
        let starts = [("10.0.0.1", 1_500, true), ("fd00::1", 2_500, false)];
        let starts = starts.map(|(address, until, is_slow)| {
            let until = Duration::from_millis(until);
            (web(), address.parse().unwrap(), Start { until, is_slow })
        });
        let silent = [(web(), "10.0.0.2".parse().unwrap(), Duration::from_secs(9))];
        let read_at = |millis| {
            let (new, silence) = StandingsFile::read(&file.path, Duration::from_millis(millis));
            let new = new
                .all()
                .map(|(name, address, start)| (name.clone(), address, start));
            let silent = silence
                .all()
                .map(|(name, address, until)| (name.clone(), address, until));
            (new.collect::<Vec<_>>(), silent.collect::<Vec<_>>())
        };
        let read = || read_at(1_000);
        assert_eq!(read(), (vec![], vec![]));
        let (new, silence) = (
            Newcomers::remembering(starts.clone()),
            Silence::remembering(silent.clone()),
        );
        file.write(&new, &silence).unwrap();
        assert_eq!(read(), (starts.to_vec(), silent.to_vec()));
        // What is over is dropped.
        assert_eq!(read_at(1_500), (starts[1..].to_vec(), silent.to_vec()));
        assert_eq!(read_at(9_000), (vec![], vec![]));
        std::fs::write(&file.path, "[{\"service\":").unwrap();
        assert_eq!(read(), (vec![], vec![]));
    }

    /// Returns endpoints of one Service that are new until 9 s, with these numbers.
    fn starts(numbers: std::ops::Range<u32>) -> impl Iterator<Item = (ObjectName, IpAddr, Start)> {
        let start = Start {
            until: Duration::from_secs(9),
            is_slow: true,
        };
        let web = ObjectName::new("default", "web");
        numbers.map(move |number| (web.clone(), Ipv4Addr::from_bits(number).into(), start))
    }

    #[test]
    fn the_file_has_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = StandingsFile::new(directory.path().join("state.standings"));
        let most = u32::try_from(MOST).unwrap();
        let silent = starts(0..most + 1).map(|(name, address, start)| (name, address, start.until));
        let silence = Silence::remembering(silent);
        file.write(&Newcomers::remembering(starts(0..most + 1)), &silence)
            .unwrap();
        let (new, silence) = StandingsFile::read(&file.path, Duration::ZERO);
        assert_eq!((new.all().count(), silence.all().count()), (MOST, MOST));
    }

    #[test]
    fn nothing_is_left_after_the_removal_not_even_of_a_write_that_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let file = StandingsFile::new(directory.path().join("state.standings"));
        let none = (Newcomers::default(), Silence::default());
        file.write(&none.0, &none.1).unwrap();
        std::fs::write(directory.path().join("state.standings-new"), "[").unwrap();
        StandingsFile::remove(&file.path);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
