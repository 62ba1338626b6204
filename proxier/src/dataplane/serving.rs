//! What a dataplane knows of a frontend beside the plan, for people who look at it.

use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;
use relay::EndpointState;

/// What a dataplane knows of a frontend beside the plan.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// The virtual server of clients inside the cluster, if IPVS has one for them.
    pub inside: Option<ipvs::ServiceKey>,
    /// The endpoints that left and keep their connections, and until when, in time since boot.
    pub draining: Vec<(SocketAddr, Duration)>,
    /// The endpoints of a relay, some twice: for clients inside and outside the cluster. `None` if the kernel serves.
    pub relayed: Option<Vec<(SocketAddr, EndpointState)>>,
}
