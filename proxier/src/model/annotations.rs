//! What a Service's annotations ask for.

use std::fmt;
use std::sync::Arc;

use super::Cidr;

/// The wishes of one Service that Kubernetes has no field for (annotations `ipvs-proxier.io/..`);
/// `None` = the cluster's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `scheduler`: an IPVS scheduler's name, 1 to 15 bytes. Whether this kernel has it shows when
    /// it is programmed.
    pub scheduler: Option<Box<str>>,
    /// `scheduler-flags`: in place of those that the scheduler gets by default.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// `weights`: the endpoints' shares of new connections.
    pub weights: Option<Weights>,
    /// `drain-seconds`: how long a removed endpoint keeps its connections; 0 = not at all.
    pub drain_secs: Option<u32>,
    /// `idle-timeout`: after how many seconds without a packet a connection may be forgotten; at
    /// least 1.
    pub idle_timeout_secs: Option<u32>,
    /// `topology-keys`: how near endpoints have to be, in order of preference; never empty, no key
    /// twice, [`TopologyKey::Any`] only at the end.
    pub topology_keys: Option<Box<[TopologyKey]>>,
}

/// Flags of the hashing schedulers `sh` and `mh`; others have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerFlags {
    /// Where the hash chooses an endpoint that takes no connections, another one is chosen instead
    /// of refusing the client (`ipvsadm`'s `sh-fallback`, `mh-fallback`).
    pub fallback: bool,
    /// The client's port is hashed too, not only its address (`sh-port`, `mh-port`).
    pub port: bool,
}

/// How many new connections an endpoint gets in relation to others. Of several rules for an
/// endpoint the most exact counts: its address, else its node, else its zone, else the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// By address, longest prefixes first; no network twice.
    pub addresses: Box<[(Cidr, u16)]>,
    /// By node name, in order of the names; no node twice.
    pub nodes: Box<[(Arc<str>, u16)]>,
    /// By zone, in order of the names; no zone twice.
    pub zones: Box<[(Arc<str>, u16)]>,
    /// Of all other endpoints.
    pub default: u16,
}

/// How near to this node an endpoint has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopologyKey {
    /// On this node.
    Hostname,
    /// In this node's zone.
    Zone,
    /// In this node's region.
    Region,
    /// Anywhere.
    Any,
}

impl TopologyKey {
    /// All keys, the nearest first.
    pub const ALL: [Self; 4] = [Self::Hostname, Self::Zone, Self::Region, Self::Any];

    /// The key as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hostname => "kubernetes.io/hostname",
            Self::Zone => "topology.kubernetes.io/zone",
            Self::Region => "topology.kubernetes.io/region",
            Self::Any => "*",
        }
    }
}

impl fmt::Display for TopologyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
