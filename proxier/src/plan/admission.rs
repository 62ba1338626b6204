//! The properties of a frontend that decide its packet rules.

use std::net::IpAddr;

use crate::model::{Networks, TrafficPolicy};

/// The clients that may use a frontend, and the treatment of their packets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Admission {
    /// The kind of frontend, as far as it decides rules.
    pub scope: Scope,
    /// `internalTrafficPolicy` of a cluster IP, `externalTrafficPolicy` of the others.
    pub policy: TrafficPolicy,
    /// Whether endpoints accept new connections, and whether the policy allows these endpoints.
    pub endpoints: Availability,
    /// The sources that may connect (`loadBalancerSourceRanges` of the address's family); `None`
    /// if all may.
    pub source_ranges: Option<Networks>,
    /// How clients inside the cluster reach the endpoints of all nodes; `None` if all clients reach the same
    /// endpoints.
    pub inside: Option<MarkedClients>,
}

/// The way of clients inside the cluster at a frontend where they reach other endpoints than clients outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkedClients {
    /// The firewall mark whose virtual server has the endpoints of all nodes.
    pub mark: u32,
    /// The addresses of those endpoints that are on this node, in ascending order, each once. Their answers
    /// return through this node, whoever the client is.
    pub here: Box<[IpAddr]>,
}

impl Admission {
    /// Returns whether clients get wrong results without packet rules.
    ///
    /// Without the rules of source ranges, all clients are admitted. Without the firewall mark, clients
    /// inside the cluster reach only the endpoints of this node. Without masquerade, an endpoint on another
    /// node answers an outside client directly, and the client drops the answer for its wrong source.
    pub fn needs_rules(&self) -> bool {
        let is_masqueraded = self.scope != Scope::Internal && self.policy == TrafficPolicy::Cluster;
        self.source_ranges.is_some() || self.inside.is_some() || is_masqueraded
    }
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
