//! The names of sets, maps and chains.

use std::sync::Arc;

use crate::dataplane::packet_rules::{PerFamily, per_family};

/// The frontends with endpoints, each with the chain of its pick.
pub(super) const FRONTENDS: PerFamily = per_family!("frontends");
/// Each slot of each frontend, with the address and port of its endpoint.
pub(super) const ENDPOINTS: PerFamily = per_family!("endpoints");
/// The frontends that reject some or all clients, with the chain that does so.
pub(super) const GUARDED: PerFamily = per_family!("guarded");
/// The frontends for clients outside the cluster. Connections to them are masqueraded, except as [`LOCAL_FRONTENDS`] says.
pub(super) const EXTERNAL_FRONTENDS: PerFamily = per_family!("external");
/// Those with policy Local, with the chain that decides about masquerading.
pub(super) const LOCAL_FRONTENDS: PerFamily = per_family!("local");
/// The frontends with session affinity, with the chain that learns the client's endpoint.
pub(super) const STICKY: PerFamily = per_family!("sticky");
/// The endpoint of each client of a frontend with session affinity. Packets add them.
pub(super) const AFFINITY: PerFamily = per_family!("affinity");
/// The frontends whose connections are counted.
pub(super) const COUNTED: PerFamily = per_family!("counted");
/// The cluster IPs. At other service addresses, unlisted ports are those of the machine that has the address.
pub(super) const CLUSTER_IPS: PerFamily = per_family!("cluster-ips");

/// Decides about new connections before NAT.
pub(super) const NEW: &str = "new";
/// Finds the pick of a new connection's frontend.
pub(super) const DISPATCH: &str = "dispatch";
/// Decides about new connections after NAT.
pub(super) const AFTER: &str = "after";
/// Learns the endpoints of clients with session affinity.
pub(super) const TRANSLATED: &str = "translated";
/// Masquerades connections from inside the cluster, unless their client is on this node.
pub(super) const INSIDE_ELSEWHERE: &str = "inside-elsewhere";

/// The beginning of the name of a chain that learns.
const LEARN: &str = "learn-";

/// Returns the name of the chain that learns endpoints for so long.
pub(super) fn learn(seconds: u32) -> Arc<str> {
    format!("{LEARN}{seconds}").into()
}
