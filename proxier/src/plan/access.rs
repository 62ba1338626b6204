//! The clients that may use a frontend.

use crate::cluster::model::{Networks, TrafficPolicy};

/// The clients that may use a frontend, and the treatment of their packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Access {
    /// The kind of frontend, as far as it decides rules.
    pub scope: Scope,
    /// `internalTrafficPolicy` of a cluster IP, `externalTrafficPolicy` of the others.
    pub policy: TrafficPolicy,
    /// Whether endpoints accept new connections, and whether the policy allows these endpoints.
    pub endpoints: Availability,
    /// The sources that may connect (`loadBalancerSourceRanges` of the address's family); `None`
    /// if all may.
    pub source_ranges: Option<Networks>,
}

/// The side of the cluster boundary from which clients use a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A cluster IP.
    Internal,
    /// An external IP or a load-balancer address.
    External,
    /// A node port. Clients are outside, too, but the address is the node's own.
    NodePort,
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
