//! The names of sets and chains.

use std::sync::Arc;

use crate::frontend::Frontend;
use crate::model::Family;

/// The names of two sets with the same purpose, one per family.
#[derive(Clone, Copy)]
pub(super) struct PerFamily {
    v4: &'static str,
    v6: &'static str,
}

impl PerFamily {
    pub(super) fn of(self, family: Family) -> &'static str {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

macro_rules! per_family {
    ($name:literal) => {
        PerFamily {
            v4: concat!($name, "-4"),
            v6: concat!($name, "-6"),
        }
    };
}

/// Every frontend, with the chain that decides whether a connection is masqueraded.
pub(super) const FRONTENDS: PerFamily = per_family!("frontends");
/// The frontends that some or all clients may not use now, with the chain that rejects those.
pub(super) const GUARDED: PerFamily = per_family!("guarded");
/// The frontends whose clients inside the cluster get other endpoints than those outside, with the
/// chain that sets the firewall mark.
pub(super) const INSIDE: PerFamily = per_family!("inside");
/// The addresses that are local for Services only.
pub(super) const SERVICE_ADDRESSES: PerFamily = per_family!("service-addresses");
/// The service addresses that answer pings.
pub(super) const PINGABLE: PerFamily = per_family!("pingable");
/// Each endpoint on this node, as a pair of equal source and destination addresses.
pub(super) const HAIRPIN: PerFamily = per_family!("hairpin");
/// The health-check node ports.
pub(super) const HEALTH_CHECK_PORTS: &str = "health-check-ports";
/// The firewall marks of [`INSIDE`].
pub(super) const INSIDE_MARKS: &str = "inside-marks";
/// By connection, the mark that its packets had before they got a firewall mark.
pub(super) const MARKS_BEFORE: &str = "marks-before";

/// Decides about masquerading for connections to cluster IPs.
pub(super) const CLUSTER_IP: &str = "cluster-ip";
/// Masquerades connections to external frontends with policy Cluster.
pub(super) const EXTERNAL: &str = "external";
/// Decides about masquerading for connections to external frontends with policy Local.
pub(super) const LOCAL_ONLY: &str = "local-only";
/// Sets the masquerade bit.
pub(super) const MASQUERADE: &str = "mark-masquerade";
/// Rejects new connections.
pub(super) const REFUSE: &str = "refuse";
/// Drops new connections from outside the cluster.
pub(super) const NOT_HERE: &str = "not-here";
/// Sets the firewall mark of packets to the frontends in [`INSIDE`].
pub(super) const INSIDE_CHAIN: &str = "inside";
/// Restores the mark that a packet had before its firewall mark.
pub(super) const RESTORE: &str = "restore";

/// Returns the name of the chain that admits only certain sources to `frontend`.
pub(super) fn ranges(frontend: &Frontend) -> Arc<str> {
    // Names may not contain colons.
    let address = frontend.address.to_string().replace(':', "_");
    let protocol = frontend.protocol.to_string().to_lowercase();
    format!("ranges-{protocol}-{address}-{}", frontend.port).into()
}

/// Returns the name of the chain that sets this firewall mark.
pub(super) fn inside(mark: u32) -> Arc<str> {
    format!("inside-{mark:08x}").into()
}
