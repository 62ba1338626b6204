//! Flags about the choice between IPVS and the userspace dataplane.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{DurationFlag, NodeFlags};
use crate::dataplane::Failure;
use crate::dataplane::linux::Linux;
use crate::dataplane::userspace::Userspace;
use crate::filter::LocalMode;
use crate::model::{Family, Networks};
use crate::relay::{InsideClients, RelayLimits};

/// Flags about the dataplane. kube-proxy has no such flags.
#[derive(Args, Debug)]
pub(super) struct DataplaneFlags {
    /// How connections reach endpoints.
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    dataplane: DataplaneFlag,

    /// How long the userspace dataplane waits for open connections before the process exits.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    userspace_stop_timeout: DurationFlag,

    /// Number of threads that relay connections [default: the number of processors].
    #[arg(long, value_name = "NUMBER")]
    userspace_workers: Option<std::num::NonZeroU16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DataplaneFlag {
    /// IPVS if this process can program it, otherwise userspace.
    Auto,
    // The default: on a node that lacks a module or a capability for a moment, a relay would be a surprise.
    /// The kernel's IPVS.
    #[default]
    Ipvs,
    /// A relay in this process, which needs neither IPVS nor privileges.
    Userspace,
}

/// The kind of a dataplane, on which the valid addresses depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataplaneKind {
    /// The kernel's IPVS.
    Ipvs,
    /// The relay.
    Userspace,
}

/// The chosen dataplane.
pub(super) enum Chosen {
    /// The kernel's IPVS.
    Ipvs(Box<Linux>),
    /// The relay.
    Userspace,
}

impl DataplaneFlags {
    /// Opens IPVS, or chooses the relay and logs why.
    pub(super) fn choose(&self, node: &NodeFlags) -> Result<Chosen, Failure> {
        let usable = || {
            let mut linux = node.open_kernel()?;
            linux.check_permission().map(|()| linux)
        };
        match self.dataplane {
            DataplaneFlag::Userspace => Ok(Chosen::Userspace),
            DataplaneFlag::Ipvs => Ok(Chosen::Ipvs(Box::new(node.open_kernel()?))),
            DataplaneFlag::Auto => match usable() {
                Ok(linux) => Ok(Chosen::Ipvs(Box::new(linux))),
                Err(reason) => {
                    tracing::warn!("serving in userspace, because IPVS cannot be used: {reason}");
                    Ok(Chosen::Userspace)
                }
            },
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

    /// Returns how long open connections may last when the process stops.
    pub(super) fn stop_timeout(&self) -> Duration {
        self.userspace_stop_timeout.0
    }
}

/// Returns the clients inside the cluster, as far as a relay can recognise them.
///
/// It sees the address of a client, but not the interface on which its packets arrived.
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
