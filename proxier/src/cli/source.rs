//! Where objects come from.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use anyhow::Context as _;
use clap::Args;

use crate::daemon::Message;
use crate::model::Cidr;
use crate::watch::{self, Watch};
use crate::{follow, manifests};

/// Flags that say where objects come from: manifests, or else an API server.
#[derive(Args, Debug)]
pub(super) struct SourceFlags {
    /// Objects come from a manifest file, or from a directory of .yaml, .yml and .json files,
    /// instead of an API server.
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["kubeconfig", "master"])]
    manifests: Option<PathBuf>,

    /// Give a cluster IP out of these ranges to Services of the manifests that have none.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    service_cidr: Vec<Cidr>,

    /// How to reach the API server [default: as a Pod does].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The address of the API server, instead of the one in the kubeconfig.
    #[arg(long, value_name = "URL")]
    master: Option<String>,
}

impl SourceFlags {
    /// Begins to tell `listener` of all objects and of their changes. What is returned has to live
    /// as long as that is to go on; it is nothing for manifests.
    pub(super) fn follow(
        &self,
        node_name: Arc<str>,
        listener: SyncSender<Message>,
    ) -> anyhow::Result<Option<Watch>> {
        if let Some(path) = &self.manifests {
            let options = manifests::Options {
                service_cidr: self.service_cidr.clone(),
                node_name,
            };
            follow::manifests(path.clone(), options, listener).context("--manifests")?;
            return Ok(None);
        }
        let config = watch::WatchConfig {
            server: watch::Server {
                kubeconfig: self.kubeconfig.clone(),
                master: self.master.clone(),
            },
            node_name: node_name.to_string(),
            timeouts: watch::Timeouts::default(),
        };
        Ok(Some(watch::start(config, listener)?))
    }
}
