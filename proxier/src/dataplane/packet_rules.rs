//! Pieces of packet rules that the rules beside IPVS and the table of the dataplane nftables have in common.

use std::sync::Arc;

use ::nftables::{Match, NewMark, Relation, Rule, Selector, Statement, Verdict};

use super::ipvs::filter::MarkBit;
use crate::cluster::model::{Cidr, Family, Networks};

mod part;
mod view;

pub(super) use part::{Additions, Changes, Part, Parts};
pub(super) use view::PlanView;

pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Makes the names of two sets from the name that they have in common.
macro_rules! per_family {
    ($name:literal) => {
        crate::dataplane::packet_rules::PerFamily::new(concat!($name, "-4"), concat!($name, "-6"))
    };
}
pub(super) use per_family;

mod clients;
mod guard;
mod masquerade;
mod unallocated;

pub(crate) use clients::LocalClients;
pub(super) use clients::return_for;
pub(super) use guard::{Guarding, guarding, key_of, ranges};
pub(super) use masquerade::{SOURCE_NAT, cluster_ip, postrouting};
pub(super) use unallocated::unallocated;

/// The addresses that belong to Services only. With IPVS they are local.
pub(super) const SERVICE_ADDRESSES: PerFamily = per_family!("service-addresses");
/// The service addresses with endpoints, which answer pings.
pub(super) const PINGABLE: PerFamily = per_family!("pingable");
/// Each endpoint on this node, as a pair of equal source and destination addresses.
pub(super) const HAIRPIN: PerFamily = per_family!("hairpin");
/// The health-check node ports.
pub(super) const HEALTH_CHECK_PORTS: &str = "health-check-ports";

/// Decides about masquerading for connections to cluster IPs.
pub(super) const CLUSTER_IP: &str = "cluster-ip";
/// Decides about masquerading for connections to external frontends with policy Local.
pub(super) const LOCAL_ONLY: &str = "local-only";
/// Sets the masquerade bit.
pub(super) const MASQUERADE: &str = "mark-masquerade";
/// Rejects connections.
pub(super) const REFUSE: &str = "refuse";
/// Drops connections from outside the cluster.
pub(super) const NOT_HERE: &str = "not-here";

/// The names of two sets with the same purpose, one per family.
#[derive(Clone, Copy)]
pub(super) struct PerFamily {
    v4: &'static str,
    v6: &'static str,
}

impl PerFamily {
    pub(super) const fn new(v4: &'static str, v6: &'static str) -> Self {
        Self { v4, v6 }
    }

    pub(super) fn of(self, family: Family) -> &'static str {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// Sets a bit of the mark, except on packets from loopback addresses, which stay on this node.
pub(super) fn set_bit(bit: MarkBit) -> Vec<Rule> {
    let loopback = [(Family::V4, "127.0.0.0/8"), (Family::V6, "::1/128")];
    let [v4, v6] = loopback.map(|(family, network)| {
        let networks = Networks::new(family, network.parse::<Cidr>());
        let from = Match::Source(Relation::Is, networks);
        rule([from.into(), Verdict::Return.into()])
    });
    // Only a bit, because the other bits of the mark belong to other programs.
    let mark = NewMark::With(bit.mark());
    vec![v4, v6, rule([Statement::SetMark(mark)])]
}

pub(super) fn clear_bit(bit: MarkBit) -> Rule {
    let bit = bit.mark();
    let cleared = Statement::SetMark(NewMark::Without(bit));
    rule([Match::HasMark(bit).into(), cleared])
}

pub(super) fn networks_of(family: Family, networks: &[Cidr]) -> Option<Networks> {
    let networks = Networks::new(family, networks.iter().copied());
    (!networks.is_empty()).then_some(networks)
}

/// Matches packets from these networks, for each family that they have.
pub(super) fn from_networks(networks: &[Cidr]) -> Vec<Match> {
    FAMILIES
        .into_iter()
        .filter_map(|family| networks_of(family, networks))
        .map(|networks| Match::Source(Relation::Is, networks))
        .collect()
}

/// Matches packets that arrive from a device whose name begins so.
pub(super) fn of_device(prefix: &str) -> Match {
    Match::InputInterfacePrefix(Relation::Is, prefix.into())
}

pub(super) fn frontend_map(family: Family, map: PerFamily) -> Statement {
    lookup(frontend_key(family), map.of(family))
}

/// Returns the values of a packet that are the key of its frontend.
pub(super) fn frontend_key(family: Family) -> [Selector; 3] {
    let address = Selector::Destination(family);
    [address, Selector::Protocol, Selector::DestinationPort]
}

pub(super) fn addressed_to(family: Family, set: PerFamily) -> Statement {
    within([Selector::Destination(family)], set.of(family))
}

/// Matches packets of which these values are in a set.
pub(super) fn within(key: impl Into<Box<[Selector]>>, set: &str) -> Statement {
    Statement::In {
        key: key.into(),
        set: set.into(),
    }
}

/// Applies the verdict that a map has for these values of a packet.
pub(super) fn lookup(key: impl Into<Box<[Selector]>>, map: &str) -> Statement {
    Statement::VerdictMap {
        key: key.into(),
        map: map.into(),
    }
}

pub(super) fn goto(chain: &str) -> Statement {
    Verdict::Goto(Arc::from(chain)).into()
}

pub(super) fn jump(chain: &str) -> Statement {
    Verdict::Jump(Arc::from(chain)).into()
}

pub(super) fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule::new(statements)
}

/// Masquerades connections of this node whose source is a service address.
///
/// The node of the endpoint may have the same service address, so it would keep the answers for itself.
pub(super) fn from_service_address(family: Family) -> Rule {
    let from = within([Selector::Source(family)], SERVICE_ADDRESSES.of(family));
    rule([from, goto(MASQUERADE)])
}
