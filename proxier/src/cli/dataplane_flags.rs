//! Flags about the choice between IPVS and the userspace dataplane.

use std::time::Duration;

use clap::{Args, ValueEnum};
use relay::{InsideClients, RelayLimits};

use super::{DurationFlag, NodeFlags};
use crate::cli::config::NodeSettings;
use crate::cluster::model::{Family, Networks};
use crate::dataplane::Failure;
use crate::dataplane::ipvs::filter::LocalMode;
use crate::dataplane::ipvs::linux::Linux;
use crate::dataplane::userspace::Userspace;
use crate::observe::overview::CounterSource;

/// Flags about the dataplane. kube-proxy has no such flags.
#[derive(Args, Debug)]
pub(super) struct DataplaneFlags {
    /// How connections reach endpoints [default: nftables if --proxy-mode or the configuration file says so,
    /// otherwise ipvs].
    // Not `auto`: on a node that lacks a module or a capability for a moment, the relay would serve although the
    // operator expects IPVS.
    #[arg(long, value_enum, value_name = "HOW")]
    dataplane: Option<DataplaneFlag>,

    /// How long the userspace dataplane waits for open connections before the process exits.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    userspace_stop_timeout: DurationFlag,

    /// Number of threads that relay connections [default: the number of processors].
    #[arg(long, value_name = "NUMBER")]
    userspace_workers: Option<std::num::NonZeroU16>,

    /// Serve node ports at 127.0.0.1, too. The kernel cannot, so a relay in this process does [default: true with
    /// the userspace dataplane or if --nodeport-addresses names localhost, otherwise false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true")]
    localhost_nodeports: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DataplaneFlag {
    /// IPVS if this process can program it, otherwise userspace.
    Auto,
    /// The kernel's IPVS.
    Ipvs,
    /// Maps of nftables alone, without IPVS and without local service addresses.
    Nftables,
    /// A relay in this process, which needs neither IPVS nor privileges.
    Userspace,
}

/// The flag about the dataplane of `plan` and `explain`.
#[derive(Args, Debug)]
pub(super) struct PlannedDataplaneFlag {
    /// The dataplane in question [default: nftables if --proxy-mode or the configuration file says so,
    /// otherwise ipvs].
    #[arg(long, value_enum, value_name = "HOW")]
    dataplane: Option<PlannedDataplane>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlannedDataplane {
    /// The kernel's IPVS.
    Ipvs,
    /// Maps of nftables alone.
    Nftables,
    /// A relay in the process of `run`. Only `explain` has it.
    Userspace,
}

impl PlannedDataplaneFlag {
    /// Returns the kind of the dataplane.
    pub(super) fn kind(&self, settings: &NodeSettings) -> DataplaneKind {
        match self.dataplane {
            Some(PlannedDataplane::Userspace) => DataplaneKind::Userspace,
            Some(PlannedDataplane::Nftables) => DataplaneKind::Nftables,
            Some(PlannedDataplane::Ipvs) => DataplaneKind::Ipvs,
            None => DataplaneKind::configured(settings),
        }
    }
}

/// The kind of a dataplane. It decides which addresses are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataplaneKind {
    /// The kernel's IPVS.
    Ipvs,
    /// Maps of nftables.
    Nftables,
    /// The relay.
    Userspace,
}

impl DataplaneKind {
    /// Returns the one that serves without a flag of ours.
    fn configured(settings: &NodeSettings) -> Self {
        match settings.is_nftables {
            true => Self::Nftables,
            false => Self::Ipvs,
        }
    }

    /// Returns the mode of kube-proxy that does the same. It has none that relays.
    pub(super) fn mode(self) -> &'static str {
        match self {
            Self::Ipvs | Self::Userspace => "ipvs",
            Self::Nftables => "nftables",
        }
    }

    /// Returns it as `--dataplane` spells it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }

    /// Returns where its connections are counted.
    pub(super) fn counters(self) -> CounterSource {
        match self {
            Self::Ipvs => CounterSource::Ipvs(None),
            Self::Nftables => CounterSource::Conntrack(None),
            Self::Userspace => CounterSource::Relay,
        }
    }
}

/// The chosen dataplane.
pub(super) enum Chosen {
    /// The kernel's IPVS.
    Ipvs(Box<Linux>),
    /// Maps of nftables.
    Nftables,
    /// The relay.
    Userspace,
}

impl DataplaneFlags {
    /// Opens IPVS, or chooses the relay and logs the reason.
    pub(super) fn choose(
        &self,
        node: &NodeFlags,
        settings: &NodeSettings,
    ) -> anyhow::Result<Chosen> {
        let usable = || -> anyhow::Result<Linux> {
            let mut linux = node.open_kernel()?;
            linux.check_permission()?;
            Ok(linux)
        };
        match self.asked(settings) {
            Some(DataplaneKind::Nftables) => Ok(Chosen::Nftables),
            Some(DataplaneKind::Userspace) => Ok(Chosen::Userspace),
            Some(DataplaneKind::Ipvs) => Ok(Chosen::Ipvs(Box::new(node.open_kernel()?))),
            None => match usable() {
                Ok(linux) => Ok(Chosen::Ipvs(Box::new(linux))),
                Err(reason) => {
                    tracing::warn!("serving in userspace, because IPVS cannot be used: {reason}");
                    Ok(Chosen::Userspace)
                }
            },
        }
    }

    /// Returns the dataplane that flags and settings name; `None` for `auto`.
    fn asked(&self, settings: &NodeSettings) -> Option<DataplaneKind> {
        Some(match self.dataplane {
            Some(DataplaneFlag::Auto) => return None,
            Some(DataplaneFlag::Ipvs) => DataplaneKind::Ipvs,
            Some(DataplaneFlag::Nftables) => DataplaneKind::Nftables,
            Some(DataplaneFlag::Userspace) => DataplaneKind::Userspace,
            None => DataplaneKind::configured(settings),
        })
    }

    /// Returns the dataplane that a kernel is prepared for. A kernel that serves no IPVS needs the settings of nftables only.
    pub(super) fn kernel_kind(&self, settings: &NodeSettings) -> DataplaneKind {
        match self.asked(settings) {
            Some(DataplaneKind::Nftables) => DataplaneKind::Nftables,
            _ => DataplaneKind::Ipvs,
        }
    }

    /// Starts the relay.
    pub(super) fn start(&self, local_mode: &LocalMode) -> Result<Userspace, Failure> {
        let mut limits = RelayLimits::default();
        if let Some(workers) = self.userspace_workers {
            limits.workers = workers.get().into();
        }
        Userspace::start(limits, inside(local_mode))
    }

    /// Starts the relay that serves node ports at 127.0.0.1 beside the kernel. Returns `None` if no
    /// setting asks for it.
    pub(super) fn start_companion(
        &self,
        settings: &NodeSettings,
    ) -> Result<Option<Userspace>, Failure> {
        if !self.has_localhost_node_ports(DataplaneKind::Ipvs, settings) {
            return Ok(None);
        }
        let limits = RelayLimits {
            // One worker suffices, because only processes of the node connect to 127.0.0.1.
            workers: self
                .userspace_workers
                .map_or(1, |workers| workers.get().into()),
            ..RelayLimits::default()
        };
        // Its clients are processes of this node, which are inside by default.
        Userspace::start(limits, InsideClients::default()).map(Some)
    }

    /// Returns whether 127.0.0.1 serves node ports.
    pub(super) fn has_localhost_node_ports(
        &self,
        kind: DataplaneKind,
        settings: &NodeSettings,
    ) -> bool {
        let default = kind == DataplaneKind::Userspace || settings.localhost_node_ports;
        self.localhost_nodeports.unwrap_or(default)
    }

    /// Returns how long open connections may last when the process stops.
    pub(super) fn stop_timeout(&self) -> Duration {
        self.userspace_stop_timeout.0
    }
}

/// Returns the clients inside the cluster, as far as a relay can recognise them.
///
/// A relay sees a client's address, but not the interface on which the packets arrived.
fn inside(mode: &LocalMode) -> InsideClients {
    let LocalMode::ClusterCidr(networks) = mode else {
        tracing::warn!(
            "the userspace dataplane recognises clients inside the cluster by --cluster-cidr only; with \
             this --detect-local-mode, only processes of this node are inside"
        );
        return InsideClients::default();
    };
    let families = [Family::V4, Family::V6];
    let networks = families.map(|family| Networks::new(family, networks.iter().copied()));
    InsideClients::new(networks)
}
