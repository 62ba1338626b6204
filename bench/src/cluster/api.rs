//! The API server of a run.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use clap::ValueEnum;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::population::Population;
use own::OwnApi;
use real::RealApi;

mod own;
mod real;

/// The port of the API server's Service on the node.
pub(crate) const PORT: u16 = 6443;

/// The API server of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApiKind {
    /// The server in this process.
    #[default]
    Own,
    /// kube-apiserver and etcd from the folder KUBEBUILDER_ASSETS. Needs about a minute per 1,000
    /// Services; the phase slow is not possible.
    Real,
}

impl ApiKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Real => "real",
        }
    }

    /// Starts a server for `population` in the network namespace of the calling thread.
    pub(crate) fn start(self, population: &Population) -> anyhow::Result<Box<dyn Api>> {
        Ok(match self {
            Self::Own => Box::new(OwnApi::start(population)?),
            Self::Real => Box::new(RealApi::start(population)?),
        })
    }
}

/// A running API server.
pub(crate) trait Api {
    /// Creates the objects of the cluster; calls `progress` after each with their number.
    fn fill(&mut self, population: &Population, progress: &dyn Fn(u32)) -> anyhow::Result<()>;

    /// Replaces an object.
    fn replace(&mut self, slice: EndpointSlice) -> anyhow::Result<()>;

    /// Writes a kubeconfig file of this server into `folder`; returns its path.
    fn kubeconfig(&self, folder: &Path) -> anyhow::Result<PathBuf>;

    /// Returns whether the endpoint of `default/kubernetes` is an echo server.
    fn has_echo(&self) -> bool;

    /// Ends all watches and expires their resource versions.
    fn forget_versions(&mut self) -> anyhow::Result<()>;

    /// Ends all connections; watches can continue.
    fn reset_watches(&mut self) -> anyhow::Result<()>;

    /// Refuses connections until [`Api::resume`]. Objects can be changed in this time.
    fn set_gone(&mut self) -> anyhow::Result<()>;

    /// Accepts requests but answers none until [`Api::resume`].
    fn set_slow(&mut self) -> anyhow::Result<()>;

    fn resume(&mut self) -> anyhow::Result<()>;

    /// Returns when the last list was complete; `None` if the server does not tell.
    fn last_list(&self) -> Option<Instant>;
}

/// Returns the first address of the node.
fn endpoint(population: &Population) -> anyhow::Result<std::net::IpAddr> {
    let first = population.node_addresses().into_iter().next();
    first.context("a node without an address")
}
