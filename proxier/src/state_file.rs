//! What has to be remembered while the kernel runs: which virtual servers are ours, which
//! destinations drain and until when.
//!
//! A journal under `/run`, which lives as long as the kernel's table does: one line of JSON for each
//! thing learnt, so that remembering costs what is remembered. It is written before something new is
//! programmed (naming a virtual server that does not exist does no harm, forgetting one does) and
//! again after something was removed. A process killed in the middle of a line loses that line only.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipvs_netlink as ipvs;
use serde::{Deserialize, Serialize};

use crate::dataplane::Failure;
use crate::drain::Drains;
use crate::owned::Owned;
use crate::rules::Fingerprint;

/// The journal is written anew when it has this many lines more than twice what it has to say.
const SLACK: usize = 1_000;

/// How many records are written at a time, so that memory does not grow with their number.
const RECORDS_AT_A_TIME: usize = 1_000;

/// What the file remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The virtual servers that are ours.
    pub owned: Owned,
    /// The destinations on their way out.
    pub drains: Drains,
    /// The packet rules that were set last: the number of the state of all rules then, and what ours
    /// were.
    pub rules: Option<(u32, Fingerprint)>,
}

/// One thing learnt; a line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Record {
    /// A virtual server is ours.
    Own {
        /// Which.
        server: Key,
        /// The Service port it serves, as `namespace/name:port`.
        service: Box<str>,
    },
    /// A virtual server is gone.
    Disown {
        /// Which.
        server: Key,
    },
    /// A destination drains.
    Drain {
        /// Of which virtual server.
        server: Key,
        /// Which.
        destination: std::net::SocketAddr,
        /// Until when at most, in seconds since boot.
        until: u64,
    },
    /// Packet rules were set.
    Rules {
        /// The number of the state of all rules then.
        generation: u32,
        /// What ours were.
        fingerprint: Fingerprint,
    },
    /// A destination drains no more.
    Drained {
        /// Of which virtual server.
        server: Key,
        /// Which.
        destination: std::net::SocketAddr,
    },
}

/// A virtual server in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Key {
    /// By address.
    Address {
        /// The IP protocol's number.
        protocol: u16,
        /// The address.
        address: std::net::IpAddr,
        /// The port.
        port: u16,
    },
    /// By firewall mark.
    Mark {
        /// The mark.
        mark: u32,
        /// Whether it is one of IPv6.
        v6: bool,
    },
}

impl Key {
    /// The key in the file's form; `None` for kinds of key that we never create.
    pub fn new(key: ipvs::ServiceKey) -> Option<Self> {
        match key {
            ipvs::ServiceKey::Address {
                protocol,
                address,
                port,
            } => Some(Self::Address {
                protocol: protocol.into(),
                address,
                port,
            }),
            ipvs::ServiceKey::Mark { family, mark } => Some(Self::Mark {
                mark,
                v6: family == ipvs::Family::V6,
            }),
            _ => None,
        }
    }
}

impl From<Key> for ipvs::ServiceKey {
    fn from(key: Key) -> Self {
        match key {
            Key::Address {
                protocol,
                address,
                port,
            } => Self::Address {
                protocol: protocol.into(),
                address,
                port,
            },
            Key::Mark { mark, v6 } => Self::Mark {
                family: if v6 {
                    ipvs::Family::V6
                } else {
                    ipvs::Family::V4
                },
                mark,
            },
        }
    }
}

impl State {
    fn take(&mut self, record: Record) {
        match record {
            Record::Own { server, service } => {
                self.owned.insert(server.into(), &service);
            }
            Record::Disown { server } => {
                self.owned.remove(&server.into());
                self.drains.end_all(&server.into());
            }
            Record::Drain {
                server,
                destination,
                until,
            } => {
                let deadline = Duration::from_secs(until);
                self.drains
                    .begin(server.into(), destination.into(), Duration::ZERO, deadline);
            }
            Record::Rules {
                generation,
                fingerprint,
            } => self.rules = Some((generation, fingerprint)),
            Record::Drained {
                server,
                destination,
            } => {
                self.drains.end(&server.into(), &destination.into());
            }
        }
    }

    fn records(&self) -> Vec<Record> {
        let owned = self.owned.iter().filter_map(|(key, name)| {
            Some(Record::Own {
                server: Key::new(*key)?,
                service: name.into(),
            })
        });
        let drains = self.drains.iter().filter_map(|(key, destination, drain)| {
            Some(Record::Drain {
                server: Key::new(key)?,
                destination: (destination.address, destination.port).into(),
                until: drain.deadline.as_secs(),
            })
        });
        let rules = self.rules.map(|(generation, fingerprint)| Record::Rules {
            generation,
            fingerprint,
        });
        owned.chain(drains).chain(rules).collect()
    }
}

/// The file.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    journal: Option<File>,
    lines: usize,
    /// Whether it lacks what could not be added.
    is_behind: bool,
}

/// Why the state file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("state file {}: {source}", .path.display())]
pub struct Error {
    path: PathBuf,
    source: std::io::Error,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            errno: rustix::io::Errno::from_io_error(&error.source),
            message: error.to_string(),
        }
    }
}

impl StateFile {
    /// The file at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            journal: None,
            lines: 0,
            is_behind: false,
        }
    }

    /// Reads it; nothing is remembered when it does not exist.
    ///
    /// A line that makes no sense is passed over with a warning: it was being written when its
    /// writer was killed, before anything it names was programmed.
    ///
    /// # Errors
    /// When it exists and cannot be read. Going on as if nothing were ours would leave virtual
    /// servers behind, so the caller decides.
    pub fn load(&mut self) -> Result<State, Error> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(self.error(source)),
        };
        let mut state = State::default();
        let lines = text.split(|&byte| byte == b'\n');
        for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
            self.lines += 1;
            match serde_json::from_slice(line) {
                Ok(record) => state.take(record),
                Err(error) => {
                    let path = self.path.display();
                    tracing::warn!("state file {path}: line {}: {error}; skipped", number + 1);
                }
            }
        }
        Ok(state)
    }

    /// Adds `records`, which led to `state`. One system call for every thousand; none when there are no
    /// records. Where records could not be added before, all of the state is written instead.
    ///
    /// # Errors
    /// When the file cannot be written. Nobody has to keep the records: the next call makes it good.
    pub fn append(&mut self, records: &[Record], state: &State) -> Result<(), Error> {
        if self.is_behind {
            return self.rewrite(state);
        }
        let added = self.add(records);
        self.is_behind = added.is_err();
        added
    }

    fn add(&mut self, records: &[Record]) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        let mut text = Vec::new();
        for records in records.chunks(RECORDS_AT_A_TIME) {
            text.clear();
            encode(records, &mut text).map_err(|source| self.error(source))?;
            let written = self.journal().and_then(|file| file.write_all(&text));
            written.map_err(|source| self.error(source))?;
            self.lines += records.len();
        }
        Ok(())
    }

    /// Writes the file anew when most of its lines say what later ones revoked. Readers see the old
    /// file or the new one.
    ///
    /// # Errors
    /// When the file cannot be written; the old one stays.
    pub fn tidy(&mut self, state: &State) -> Result<(), Error> {
        let needed = state.owned.len() + state.drains.iter().count();
        if self.lines <= 2 * needed + SLACK {
            return Ok(());
        }
        self.rewrite(state)
    }

    fn rewrite(&mut self, state: &State) -> Result<(), Error> {
        let records = state.records();
        let mut text = Vec::new();
        let replaced = encode(&records, &mut text).and_then(|()| replace(&self.path, &text));
        replaced.map_err(|source| self.error(source))?;
        self.journal = None;
        self.lines = records.len();
        self.is_behind = false;
        Ok(())
    }

    /// Removes it, which is no error when it does not exist.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(self) -> Result<(), Error> {
        match std::fs::remove_file(&self.path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(self.error(source)),
            _ => Ok(()),
        }
    }

    /// The file, open for adding; ends a line that a killed writer left unfinished.
    fn journal(&mut self) -> std::io::Result<&mut File> {
        let file = match self.journal.take() {
            Some(file) => file,
            None => {
                create_directory(&self.path)?;
                let mut options = File::options();
                let mut file = options.create(true).append(true).open(&self.path)?;
                if self.lines > 0 {
                    file.write_all(b"\n")?;
                }
                file
            }
        };
        Ok(self.journal.insert(file))
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error {
            path: self.path.clone(),
            source,
        }
    }
}

fn encode(records: &[Record], text: &mut Vec<u8>) -> std::io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut *text, record)?;
        text.push(b'\n');
    }
    Ok(())
}

/// Creates the directory that `path` is in, where it is not there.
fn create_directory(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    create_directory(path)?;
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(last: u8, service: &str) -> Record {
        Record::Own {
            server: server(last),
            service: service.into(),
        }
    }

    fn server(last: u8) -> Key {
        Key::Address {
            protocol: 6,
            address: [10, 96, 0, last].into(),
            port: 80,
        }
    }

    fn drain(last: u8, until: u64) -> Record {
        Record::Drain {
            server: server(last),
            destination: "10.244.0.1:8080".parse().unwrap(),
            until,
        }
    }

    fn append(file: &mut StateFile, records: &[Record]) {
        file.append(records, &State::default()).unwrap();
    }

    fn names(state: &State) -> Vec<&str> {
        state.owned.iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn what_was_appended_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/state");
        let mut file = StateFile::new(&path);
        assert_eq!(file.load().unwrap(), State::default());
        append(&mut file, &[own(1, "a/b"), own(2, "a/c:x"), drain(2, 70)]);
        append(
            &mut file,
            &[Record::Disown { server: server(1) }, drain(2, 90)],
        );
        let mark = Record::Own {
            server: Key::Mark { mark: 7, v6: true },
            service: "a/d".into(),
        };
        append(&mut file, &[mark]);
        let state = StateFile::new(&path).load().unwrap();
        assert_eq!(names(&state), ["a/c:x", "a/d"]);
        let (key, _, drain) = state.drains.iter().next().unwrap();
        assert_eq!(key, server(2).into());
        assert_eq!(drain.deadline, Duration::from_secs(70));
    }

    #[test]
    fn a_torn_line_costs_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let whole = serde_json::to_string(&own(1, "a/b")).unwrap();
        std::fs::write(&path, format!("{whole}\n{}", &whole[..20])).unwrap();
        let mut file = StateFile::new(&path);
        assert_eq!(names(&file.load().unwrap()), ["a/b"]);
        append(&mut file, &[own(3, "a/e")]);
        assert_eq!(
            names(&StateFile::new(&path).load().unwrap()),
            ["a/b", "a/e"]
        );
    }

    #[test]
    fn tidied_when_most_of_it_is_old() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut file = StateFile::new(&path);
        for _ in 0..600 {
            append(
                &mut file,
                &[own(9, "x/y"), Record::Disown { server: server(9) }],
            );
        }
        append(&mut file, &[own(1, "a/b"), drain(1, 5)]);
        let state = StateFile::new(&path).load().unwrap();
        file.tidy(&state).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        append(&mut file, &[own(2, "a/c")]);
        let state = StateFile::new(&path).load().unwrap();
        assert_eq!(names(&state), ["a/b", "a/c"]);
        assert_eq!(state.drains.iter().count(), 1);
    }

    #[test]
    fn what_could_not_be_added_is_written_with_everything_else() {
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("run");
        std::fs::write(&blocked, "no folder").unwrap();
        let path = blocked.join("state");
        let mut file = StateFile::new(&path);
        let mut state = State::default();
        for record in [own(1, "a/b"), own(2, "a/c")] {
            state.take(record.clone());
            file.append(&[record], &state).unwrap_err();
        }
        // Not even if there is nothing to add.
        file.append(&[], &state).unwrap_err();
        std::fs::remove_file(blocked).unwrap();
        file.append(&[], &state).unwrap();
        state.take(own(3, "a/d"));
        file.append(&[own(3, "a/d")], &state).unwrap();
        assert_eq!(StateFile::new(&path).load().unwrap(), state);
    }
}
