//! The names of sets and chains.

use std::sync::Arc;

use super::Place;
use crate::model::Family;

/// Sets that exist once per family.
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

    /// The family whose set has this name.
    pub(super) fn family_of(self, name: &str) -> Option<Family> {
        let mut families = [Family::V4, Family::V6].into_iter();
        families.find(|family| self.of(*family) == name)
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

/// Every frontend, and whose connections to it are masqueraded.
pub(super) const FRONTENDS: PerFamily = per_family!("frontends");
/// The frontends that not everybody may use.
pub(super) const GUARDED: PerFamily = per_family!("guarded");
/// The frontends that have other endpoints for clients inside the cluster.
pub(super) const INSIDE: PerFamily = per_family!("inside");
/// The addresses that are local for the sake of services only.
pub(super) const SERVICE_ADDRESSES: PerFamily = per_family!("service-addresses");
/// Those that answer to ping.
pub(super) const PINGABLE: PerFamily = per_family!("pingable");
/// Each endpoint on this node, as source and destination.
pub(super) const HAIRPIN: PerFamily = per_family!("hairpin");
/// The ports of this node where load balancers ask for health.
pub(super) const HEALTH_CHECK_PORTS: &str = "health-check-ports";
/// The firewall marks in use.
pub(super) const INSIDE_MARKS: &str = "inside-marks";
/// The marks that packets had before they got a firewall mark, by connection.
pub(super) const MARKS_BEFORE: &str = "marks-before";

/// Connections to cluster IPs.
pub(super) const CLUSTER_IP: &str = "cluster-ip";
/// Connections from anywhere to frontends under policy Cluster.
pub(super) const EXTERNAL: &str = "external";
/// Connections to frontends under policy Local.
pub(super) const LOCAL_ONLY: &str = "local-only";
/// Sets the masquerade bit.
pub(super) const MASQUERADE: &str = "mark-masquerade";
/// Refuses new connections.
pub(super) const REFUSE: &str = "refuse";
/// Drops new connections from outside the cluster.
pub(super) const NOT_HERE: &str = "not-here";
/// Gives packets of clients inside the cluster their firewall mark.
pub(super) const INSIDE_CHAIN: &str = "inside";
/// Gives a packet the mark back that it had before.
pub(super) const RESTORE: &str = "restore";

/// The chain that lets certain sources pass to `place`.
pub(super) fn ranges(place: &Place) -> Arc<str> {
    // Names may not contain colons.
    let address = place.address.to_string().replace(':', "_");
    let protocol = place.protocol.to_string().to_lowercase();
    format!("ranges-{protocol}-{address}-{}", place.port).into()
}

/// The chain that gives packets this firewall mark.
pub(super) fn inside(mark: u32) -> Arc<str> {
    format!("inside-{mark:08x}").into()
}
