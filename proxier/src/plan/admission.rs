//! What the packet filter needs to know about a frontend.

use crate::model::{Networks, TrafficPolicy};

/// Which clients may use a frontend, and what their packets need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Whether clients outside the cluster use the frontend.
    pub scope: Scope,
    /// `internalTrafficPolicy` of a cluster IP, `externalTrafficPolicy` of the others.
    pub policy: TrafficPolicy,
    /// Where the frontend has endpoints.
    pub endpoints: Endpoints,
    /// The sources that may connect (`loadBalancerSourceRanges` of the address's family); `None`
    /// without restriction.
    pub source_ranges: Option<Networks>,
    /// The firewall mark through which clients inside the cluster reach endpoints that clients
    /// outside may not use.
    pub inside_mark: Option<u32>,
}

/// The kinds of frontends, as far as packet rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A cluster IP.
    Internal,
    /// An external IP, a load-balancer address or a node port.
    External,
}

/// Where a frontend has endpoints that take new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoints {
    /// Where its traffic policy allows it.
    Usable,
    /// On other nodes only, and the traffic policy is Local.
    RemoteOnly,
    /// Nowhere.
    None,
}
