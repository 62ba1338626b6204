//! The options of a Service's annotations.

use std::fmt;
use std::sync::Arc;

use super::{Cidr, ProxyProtocol, SourceAddress};

/// A Service's options for which Kubernetes has no field (annotations `ipvs-proxier.io/..`).
/// `None` selects the cluster's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// `scheduler`: an IPVS scheduler's name, 1 to 15 bytes. The kernel may lack it.
    pub scheduler: Option<Box<str>>,
    /// `scheduler-flags`: replace the scheduler's default flags.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// `weights`: the endpoints' weights.
    pub weights: Option<Weights>,
    /// `slow-start`: how long a new endpoint has a smaller weight, in seconds; 0: never.
    pub slow_start_secs: Option<u32>,
    /// `passive-health`: after how many connections without an answer an endpoint gets no new ones for a while; at least 1.
    pub passive_health: Option<u32>,
    /// `drain-seconds`: how long a removed endpoint keeps its connections; 0 removes it at once.
    pub drain_secs: Option<u32>,
    /// `max-connections`: the most connections of an endpoint at one virtual server; at least 1.
    pub most_connections: Option<u16>,
    /// `idle-timeout`: the idle timeout of connections in seconds; at least 1.
    pub idle_timeout_secs: Option<u32>,
    /// `proxy-protocol`: how endpoints learn the address of a TCP client.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// `source-address`: the source of connections to endpoints.
    pub source_address: Option<SourceAddress>,
    /// `topology-keys`: the locations of endpoints in order of preference; never empty, without
    /// duplicates, [`TopologyKey::Any`] only as the last.
    pub topology_keys: Option<Box<[TopologyKey]>>,
}

/// Flags of the schedulers `sh` and `mh`; others have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SchedulerFlags {
    /// If the selected endpoint accepts no connections, select another one instead of rejecting the
    /// client (`ipvsadm`'s `sh-fallback`, `mh-fallback`).
    pub fallback: bool,
    /// Hash the client's port too, not only its address (`sh-port`, `mh-port`).
    pub port: bool,
}

/// The weights of endpoints.
///
/// The most specific entry applies: an endpoint's address, else its node (by name, then as this node), else its zone
/// (by name, then as this node's), else this node's region, else the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    /// By address, longest prefixes first; without duplicates.
    pub addresses: Box<[(Cidr, u16)]>,
    /// By node, in order of names; without duplicates.
    pub nodes: Box<[(Arc<str>, u16)]>,
    /// By zone, in order of names; without duplicates.
    pub zones: Box<[(Arc<str>, u16)]>,
    /// By location relative to this node, nearest first; without duplicates, never [`TopologyKey::Any`].
    pub near: Box<[(TopologyKey, u16)]>,
    /// Of all other endpoints.
    pub default: u16,
}

impl Weights {
    /// Returns the largest weight that an endpoint may have.
    pub fn largest(&self) -> u16 {
        let addresses = self.addresses.iter().map(|&(_, weight)| weight);
        let named = self.nodes.iter().chain(&self.zones);
        let near = self.near.iter().map(|&(_, weight)| weight);
        let all = addresses
            .chain(named.map(|&(_, weight)| weight))
            .chain(near);
        all.fold(self.default, u16::max)
    }

    /// Returns whether they depend on the regions of other nodes.
    pub fn need_regions(&self) -> bool {
        self.near.iter().any(|(key, _)| *key == TopologyKey::Region)
    }
}

/// The location of endpoints relative to this node.
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
    /// All keys, nearest first.
    pub const ALL: [Self; 4] = [Self::Hostname, Self::Zone, Self::Region, Self::Any];

    /// Returns the key as written in the annotation.
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
