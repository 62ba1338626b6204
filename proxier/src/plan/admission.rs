//! The properties of a frontend that decide its packet rules.

use crate::model::{Networks, TrafficPolicy};

/// The clients that may use a frontend, and the treatment of their packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Whether the frontend is for clients outside the cluster.
    pub scope: Scope,
    /// `internalTrafficPolicy` of a cluster IP, `externalTrafficPolicy` of the others.
    pub policy: TrafficPolicy,
    /// Whether endpoints accept new connections, and whether the policy allows these endpoints.
    pub endpoints: Availability,
    /// The sources that may connect (`loadBalancerSourceRanges` of the address's family); `None`
    /// if all may.
    pub source_ranges: Option<Networks>,
    /// The firewall mark for packets of clients inside the cluster: its virtual server has the
    /// endpoints of all nodes. `None` if all clients reach the same endpoints.
    pub inside_mark: Option<u32>,
}

/// The side of the cluster boundary from which clients use a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A cluster IP.
    Internal,
    /// An external IP, a load-balancer address or a node port.
    External,
}

/// The availability of endpoints that accept new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Availability {
    /// The traffic policy allows at least one endpoint.
    Usable,
    /// The traffic policy is Local, and only other nodes have endpoints.
    RemoteOnly,
    /// No node has endpoints.
    None,
}
