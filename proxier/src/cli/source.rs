//! Flags about the source of Kubernetes objects.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use anyhow::Context as _;
use clap::Args;

use super::dataplane_flags::DataplaneKind;
use crate::config::NodeSettings;
use crate::daemon::Message;
use crate::events::EventTimes;
use crate::model::Cidr;
use crate::watch::{self, Watch};
use crate::{follow, manifests};

/// Flags that choose the source of objects: an API server, or manifests.
#[derive(Args, Debug)]
pub(super) struct SourceFlags {
    /// Read objects from a manifest file, or from the .yaml, .yml and .json files of a directory,
    /// instead of an API server.
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["kubeconfig", "master"])]
    manifests: Option<PathBuf>,

    /// Ranges from which Services in manifests get a cluster IP if they have none.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    service_cidr: Vec<Cidr>,
}

impl SourceFlags {
    /// Starts to send all objects and their changes to `listener`.
    ///
    /// Dropping the returned watch stops it. Manifests have none: their thread ends when the
    /// receiver is dropped.
    pub(super) fn follow(
        &self,
        settings: &NodeSettings,
        node_name: Arc<str>,
        dataplane: DataplaneKind,
        (events, listener): (Option<EventTimes>, SyncSender<Message>),
    ) -> anyhow::Result<Option<Watch>> {
        if let Some(path) = &self.manifests {
            let options = manifests::Options {
                service_cidr: self.service_cidr.clone(),
                node_name,
                // IPVS cannot serve them: the kernel drops packets from loopback addresses to endpoints.
                permits_loopback: dataplane == DataplaneKind::Userspace,
            };
            follow::manifests(path.clone(), options, listener).context("--manifests")?;
            return Ok(None);
        }
        let config = watch::WatchConfig {
            server: watch::ServerLocation {
                kubeconfig: settings.kubeconfig.clone(),
                master: settings.master.clone(),
            },
            node_name: node_name.to_string(),
            encoding: settings.encoding,
            timeouts: watch::Timeouts::default(),
            events,
        };
        Ok(Some(watch::start(config, listener)?))
    }
}
