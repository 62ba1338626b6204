//! Which virtual servers are ours.
//!
//! The kernel keeps no owner with a virtual server, so we do: in a small file under `/run`, which
//! lives as long as the kernel's table does. It is written before something new is programmed
//! (naming a virtual server that does not exist yet does no harm, forgetting one does) and again
//! after something was removed. Addresses need no such record: our routes carry our protocol number,
//! our addresses sit on our device.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipvs_netlink as ipvs;
use serde::{Deserialize, Serialize};

use crate::plan::Desired;

/// The virtual servers that we created or adopted, with the Service port each serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    names: BTreeMap<ipvs::ServiceKey, String>,
}

impl Owned {
    /// The virtual servers, as [`crate::diff::diff`] wants them.
    pub fn keys(&self) -> BTreeSet<ipvs::ServiceKey> {
        self.names.keys().copied().collect()
    }

    /// The Service port that a virtual server serves, as `namespace/name:port`.
    pub fn name(&self, key: &ipvs::ServiceKey) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }

    /// Takes in everything that is about to be programmed.
    pub fn adopt(&mut self, desired: &Desired) {
        for (key, server) in &desired.virtual_servers {
            self.names.insert(*key, server.owner.to_string());
        }
    }

    /// Forgets what is neither wanted nor there any more.
    pub fn forget(&mut self, keep: impl Fn(&ipvs::ServiceKey) -> bool) {
        self.names.retain(|key, _| keep(key));
    }
}

/// The file that remembers [`Owned`] across restarts.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    written: Option<Owned>,
}

/// Why the state file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("state file {}: {source}", .path.display())]
pub struct Error {
    path: PathBuf,
    source: std::io::Error,
}

impl StateFile {
    /// The file at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            written: None,
        }
    }

    /// Reads it; nothing is owned when it does not exist.
    ///
    /// # Errors
    /// When it exists and cannot be read or understood. Going on as if nothing were owned would
    /// leave virtual servers behind, so the caller decides.
    pub fn load(&mut self) -> Result<Owned, Error> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Owned::default());
            }
            Err(source) => return Err(self.error(source)),
        };
        let state: State = serde_json::from_str(&text).map_err(|error| self.error(error.into()))?;
        let names = state.virtual_servers.into_iter().map(Entry::into_pair);
        let owned = Owned {
            names: names.collect(),
        };
        self.written = Some(owned.clone());
        Ok(owned)
    }

    /// Writes `owned`, unless the file says so already. Readers see the old file or the new one.
    ///
    /// # Errors
    /// When the directory or file cannot be written.
    pub fn save(&mut self, owned: &Owned) -> Result<(), Error> {
        if self.written.as_ref() == Some(owned) {
            return Ok(());
        }
        let state = State {
            virtual_servers: owned.names.iter().filter_map(Entry::from_pair).collect(),
        };
        let text = serde_json::to_vec(&state).map_err(|error| self.error(error.into()))?;
        replace(&self.path, &text).map_err(|source| self.error(source))?;
        self.written = Some(owned.clone());
        Ok(())
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error {
            path: self.path.clone(),
            source,
        }
    }
}

fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let new = path.with_extension("new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(new, path)
}

/// The file's content; fields that later versions add are ignored.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct State {
    virtual_servers: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    protocol: u16,
    address: IpAddr,
    port: u16,
    service: String,
}

impl Entry {
    fn from_pair((key, name): (&ipvs::ServiceKey, &String)) -> Option<Self> {
        match *key {
            ipvs::ServiceKey::Address {
                protocol,
                address,
                port,
            } => Some(Self {
                protocol: protocol.into(),
                address,
                port,
                service: name.clone(),
            }),
            _ => None,
        }
    }

    fn into_pair(self) -> (ipvs::ServiceKey, String) {
        let protocol = self.protocol.into();
        let key = ipvs::ServiceKey::Address {
            protocol,
            address: self.address,
            port: self.port,
        };
        (key, self.service)
    }
}
