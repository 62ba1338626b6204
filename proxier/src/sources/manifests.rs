//! Kubernetes objects from files.
//!
//! The module also does the control plane's part, so that manifests work as they are printed in the
//! Kubernetes documentation: it allocates missing cluster IPs and node ports, and mirrors legacy
//! Endpoints to EndpointSlices. The output of `kubectl get services,endpointslices,nodes -A -o yaml`
//! is complete already and is used unchanged.
//!
//! ```text
//! file ─▶ document ─▶ Value ─▶ kind ─▶ api type ─▶ Inventory ─▶ assign, mirror ─▶ Loaded
//!         a bad document      a bad object        a bad field
//!         affects only itself affects only itself affects only itself
//! ```

mod addresses;
mod document;
mod field_path;
mod files;
mod inventory;
mod kind;
mod list;
mod node_ports;
mod pool;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cluster::model::Cidr;
use crate::cluster::problem::Problem;
use crate::cluster::store::Event;

use inventory::Inventory;
use pool::Numbers;

pub(crate) use files::paths;

/// Options for loading manifests.
#[derive(Clone, Debug)]
pub struct Options {
    /// The networks from which cluster IPs are allocated. If empty, a Service without a cluster IP
    /// is a [`Problem`].
    pub service_cidr: Vec<Cidr>,
    /// The name of our own node, in lower case.
    pub node_name: Arc<str>,
    /// Whether Services and endpoints may have loopback addresses, which only the userspace dataplane can
    /// serve.
    pub permits_loopback: bool,
}

/// The objects of the manifests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// One event for all Services, one for all EndpointSlices, one for the locations of all nodes if
    /// a Service needs them, and one for our Node if the manifests contain it.
    ///
    /// If the manifests are whole, each list is an [`Update::Reset`]. Otherwise it is an
    /// [`Update::Merge`], so that a [`Snapshot`](crate::cluster::store::Snapshot) keeps the last readable
    /// content of objects that cannot be read now.
    ///
    /// [`Update::Reset`]: crate::cluster::store::Update::Reset
    /// [`Update::Merge`]: crate::cluster::store::Update::Merge
    pub events: Vec<Event>,
    /// The problems of files and documents, of Endpoints, of EndpointSlices without a Service and of our Node.
    /// Services and other EndpointSlices carry theirs in the events.
    pub problems: Vec<Problem>,
    /// Whether every file, document and object could be read. A bad field does not count: it
    /// affects only itself.
    pub is_whole: bool,
    /// The cluster IPs and node ports that the next load keeps.
    pub allocated: Allocated,
}

/// The cluster IPs and node ports that were allocated for Services without one. A [`reload`] keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// The numbers of addresses, for each range of `--service-cidr`.
    addresses: Vec<Numbers>,
    node_ports: Numbers,
}

/// Why manifests could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path does not exist or is not readable.
    #[error("reading {}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The directory has no manifests. A cluster has at least one Service, so the directory is
    /// probably the wrong one, or not filled yet.
    #[error("{}: no *.yaml, *.yml or *.json in this directory", path.display())]
    NoManifests {
        /// The directory.
        path: PathBuf,
    },
}

/// Loads the file `path`, or the `*.yaml`, `*.yml` and `*.json` files of the directory `path`.
///
/// Like kubectl, it does not read subdirectories. Names that begin with a dot are ignored, which
/// leaves one copy of each file of a mounted ConfigMap. Pipes, sockets and devices of a directory are not opened. Files are read in the order of their names.
/// If two describe the same object, the later one is used.
///
/// # Errors
/// If `path` itself cannot be read. An unreadable file in the directory is a [`Problem`].
pub fn load(path: &Path, options: &Options) -> Result<Loaded, Error> {
    reload(path, options, &Allocated::default())
}

/// Loads as [`load`] does. Services keep what an earlier load `allocated`, unless a manifest specifies it now.
///
/// # Errors
/// As [`load`].
pub fn reload(path: &Path, options: &Options, allocated: &Allocated) -> Result<Loaded, Error> {
    let mut inventory = Inventory::new(options);
    for file in files::find(path)? {
        let name = file.path.display().to_string();
        match file.text {
            Ok(text) => inventory.read(&text, &name),
            Err(reason) => inventory.add_unreadable_file(&name, &reason),
        }
    }
    Ok(inventory.finish(options, allocated.clone()))
}

/// Parses `text` as the content of the file `file`: YAML or JSON, one or more documents. Does no I/O.
pub fn parse(text: &str, file: &str, options: &Options) -> Loaded {
    let mut inventory = Inventory::new(options);
    inventory.read(text, file);
    inventory.finish(options, Allocated::default())
}
