//! The file of new endpoints, so that a restarted process does not treat them as old ones, and other commands see them.
//!
//! The kernel has only their weights, which do not tell why they are small.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::chore::{Chore, Round};
use crate::cluster::model::ServicePortName;
use crate::dataplane::Dataplane;
use crate::reconcile::{Newcomers, Start};

/// Writes the file when an endpoint begins or ceases to be new.
#[derive(Debug)]
pub(crate) struct StartsFile {
    path: PathBuf,
    /// The revision that the file has.
    written: u64,
    is_failing: bool,
}

/// A new endpoint, as the file has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// `namespace/name`.
    service: String,
    address: IpAddr,
    /// In milliseconds since boot.
    until: u64,
    is_slow: bool,
}

impl StartsFile {
    /// Returns the file at `path`. It needs not exist.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            written: 0,
            is_failing: false,
        }
    }

    /// Reads the new endpoints of an earlier process; none if the file does not exist or cannot be read.
    pub(crate) fn read(path: &Path) -> Newcomers {
        let lines = std::fs::read(path)
            .and_then(|text| serde_json::from_slice::<Vec<Line>>(&text).map_err(io::Error::from));
        let lines = lines.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let path = path.display();
                tracing::warn!("{path}: {error}; new endpoints have their whole weights");
            }
            Vec::new()
        });
        Newcomers::remembering(lines.into_iter().map(|line| {
            let start = Start {
                until: Duration::from_millis(line.until),
                is_slow: line.is_slow,
            };
            let service = ServicePortName::from(line.service.as_str()).service;
            (service, line.address, start)
        }))
    }

    fn write(&self, newcomers: &Newcomers) -> io::Result<()> {
        let lines = newcomers.all().map(|(service, address, start)| Line {
            service: service.to_string(),
            address,
            until: u64::try_from(start.until.as_millis()).unwrap_or(u64::MAX),
            is_slow: start.is_slow,
        });
        let text = serde_json::to_vec(&lines.collect::<Vec<Line>>())?;
        // Renamed, so that a reader finds a whole file.
        let new = self.path.with_extension("starts-new");
        std::fs::write(&new, text)?;
        std::fs::rename(new, &self.path)
    }
}

impl<D: Dataplane> Chore<D> for StartsFile {
    fn after(&mut self, round: &Round<'_, D>) {
        let newcomers = round.proxier.newcomers();
        if newcomers.revision() == self.written {
            return;
        }
        match self.write(newcomers) {
            Ok(()) => {
                self.written = newcomers.revision();
                self.is_failing = false;
            }
            Err(error) if !self.is_failing => {
                let path = self.path.display();
                tracing::warn!(
                    "{path} cannot be written: {error}; after a restart, new endpoints have their whole weights"
                );
                self.is_failing = true;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::ObjectName;

    #[test]
    fn new_endpoints_are_read_as_written_and_a_damaged_file_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = StartsFile::new(directory.path().join("state.starts"));
        let starts = [("10.0.0.1", 1_500, true), ("fd00::1", 2_500, false)];
        let starts = starts.map(|(address, until, is_slow)| {
            let until = Duration::from_millis(until);
            let service = ObjectName::new("default", "web");
            (service, address.parse().unwrap(), Start { until, is_slow })
        });
        let list = |newcomers: &Newcomers| {
            let all = newcomers.all();
            all.map(|(name, address, start)| (name.clone(), address, start))
                .collect::<Vec<_>>()
        };
        assert_eq!(list(&StartsFile::read(&file.path)), []);
        file.write(&Newcomers::remembering(starts.clone())).unwrap();
        assert_eq!(list(&StartsFile::read(&file.path)), starts);
        std::fs::write(&file.path, "[{\"service\":").unwrap();
        assert_eq!(list(&StartsFile::read(&file.path)), []);
    }
}
