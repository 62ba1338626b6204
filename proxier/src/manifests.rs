//! Kubernetes objects from files.
//!
//! What a cluster does for an object before a proxy sees it is done here too, so that manifests
//! work as they are printed in the Kubernetes documentation: missing cluster IPs and node ports are
//! given out, legacy Endpoints become EndpointSlices. The output of
//! `kubectl get services,endpointslices,nodes -A -o yaml` has all of that already, and is taken as
//! it is.
//!
//! ```text
//! file ─▶ document ─▶ Value ─▶ kind ─▶ api type ─▶ Inventory ─▶ assign, mirror ─▶ Loaded
//!         one bad document    one bad object      one bad field
//!         costs itself        costs itself        costs itself
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

use crate::model::Cidr;
use crate::problem::Problem;
use crate::store::Event;

use inventory::Inventory;

/// What has to be known to make sense of manifests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where Services without a cluster IP get one; empty = such Services are a [`Problem`].
    pub service_cidr: Vec<Cidr>,
    /// The node whose Node object counts, in lower case.
    pub node_name: Arc<str>,
}

/// The objects of the manifests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// One event for all Services, one for all EndpointSlices, one for the locations of all nodes if
    /// a Service needs them, and one for our Node if there is one.
    ///
    /// If the manifests are whole, each list is an [`Update::Reset`]. Otherwise it is an
    /// [`Update::Merge`], so that a [`Snapshot`](crate::store::Snapshot) keeps the last readable
    /// content of what cannot be read now.
    ///
    /// [`Update::Reset`]: crate::store::Update::Reset
    /// [`Update::Merge`]: crate::store::Update::Merge
    pub events: Vec<Event>,
    /// The problems of files and documents, of Endpoints and of our Node. Services and EndpointSlices
    /// carry theirs in the events.
    pub problems: Vec<Problem>,
    /// Whether every file, document and object could be read. A bad field does not count: it costs
    /// only itself.
    pub is_whole: bool,
}

/// Why there is nothing to load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path does not exist or may not be read.
    #[error("reading {}", path.display())]
    Unreadable {
        /// The path that was asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The directory holds nothing to load. An empty cluster would look different, so this is
    /// rather a directory that is not filled yet, or the wrong one.
    #[error("{}: no *.yaml, *.yml or *.json in this directory", path.display())]
    NoManifests {
        /// The directory that was asked for.
        path: PathBuf,
    },
}

/// Reads the file at `path`, or the `*.yaml`, `*.yml` and `*.json` files in the directory there.
///
/// Like kubectl, this does not descend into directories. Names that start with a dot are passed
/// over, which leaves exactly one copy of each file of a mounted ConfigMap. Files are read in the
/// order of their names; when two describe the same object, the later one wins.
///
/// # Errors
/// When `path` cannot be read at all. A file in the directory that cannot be read is a [`Problem`].
pub fn load(path: &Path, options: &Options) -> Result<Loaded, Error> {
    let mut inventory = Inventory::default();
    for file in files::find(path)? {
        let name = file.path.display().to_string();
        match file.text {
            Ok(text) => inventory.read(&text, &name),
            Err(reason) => inventory.refuse_file(&name, &reason),
        }
    }
    Ok(inventory.finish(options))
}

/// Reads one text as if it were the contents of a file called `file`: YAML or JSON, one or more
/// documents. Does no I/O.
pub fn parse(text: &str, file: &str, options: &Options) -> Loaded {
    let mut inventory = Inventory::default();
    inventory.read(text, file);
    inventory.finish(options)
}
