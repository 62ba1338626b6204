//! Flags about the source of Kubernetes objects.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::dataplane_flags::DataplaneKind;
use crate::cli::config::NodeSettings;
use crate::cluster::model::Cidr;
use crate::plan::ServiceRanges;
use crate::sources::events::EventTimes;
use crate::sources::message::Message;
use crate::sources::watch::{self, NodeScope, Watch};
use crate::sources::{follow, manifests};

/// Flags that choose the source of objects: an API server, or manifests.
#[derive(Args, Debug)]
pub(super) struct SourceFlags {
    /// Read objects from a manifest file, or from the .yaml, .yml and .json files of a directory,
    /// instead of an API server.
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["kubeconfig", "master"])]
    manifests: Option<PathBuf>,

    /// The Nodes that may be watched: this node's own, or all while a Service needs the regions of other
    /// nodes. In a cluster of N nodes, all are N times N objects at once, and each update of a Node N times.
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "NODES",
        conflicts_with = "manifests"
    )]
    watch_nodes: WatchNodesFlag,

    /// The cluster's service ranges, beside those of its ServiceCIDRs (see --unallocated-addresses). Services in
    /// manifests without a cluster IP get one from them.
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    service_cidr: Vec<Cidr>,

    /// What happens to connections to addresses of the service ranges that no Service has, with IPVS and nftables.
    /// kube-proxy has no such flag.
    #[arg(long, value_enum, default_value_t, value_name = "reject|pass")]
    unallocated_addresses: UnallocatedFlag,
}

/// [`ServiceRanges::pass`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum UnallocatedFlag {
    /// This node rejects them.
    #[default]
    Reject,
    /// They leave by the node's routes.
    Pass,
}

/// [`NodeScope`] as the command line spells it.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum WatchNodesFlag {
    /// This node's own. The annotation topology-keys cannot use regions.
    #[default]
    Own,
    /// All, while the annotation topology-keys of a Service needs their regions.
    All,
}

impl From<WatchNodesFlag> for NodeScope {
    fn from(choice: WatchNodesFlag) -> Self {
        match choice {
            WatchNodesFlag::Own => Self::Own,
            WatchNodesFlag::All => Self::All,
        }
    }
}

impl SourceFlags {
    /// Returns what the operator knows of the service ranges.
    pub(super) fn service_ranges(&self) -> ServiceRanges {
        ServiceRanges {
            named: self.service_cidr.clone(),
            pass: self.unallocated_addresses == UnallocatedFlag::Pass,
        }
    }

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
        if let Some(warning) = settings.unknown_networks() {
            tracing::warn!("{warning}");
        }
        let config = watch::WatchConfig {
            server: watch::ServerLocation {
                kubeconfig: settings.kubeconfig.clone(),
                master: settings.master.clone(),
            },
            node_name: node_name.to_string(),
            nodes: self.watch_nodes.into(),
            encoding: settings.encoding,
            timeouts: watch::Timeouts::default(),
            events,
        };
        Ok(Some(watch::start(config, listener)?))
    }
}
