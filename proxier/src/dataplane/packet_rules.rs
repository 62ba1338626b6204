//! Pieces of packet rules that the rules beside IPVS and the table of the dataplane nftables have in common.

use std::sync::Arc;

use ::nftables::{Match, NewMark, Relation, Rule, Selector, Statement, Verdict};

use super::ipvs::filter::MarkBit;
use crate::cluster::model::{Cidr, Family, Networks};
use crate::plan::frontend::Frontend;

mod part;
mod view;

pub(super) use part::{Changes, Part, Parts};
pub(super) use view::PlanView;

pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The devices of Pods that common network plugins make, by the beginning of their names: Calico, Amazon, Azure,
/// Cilium, Google, plugins of the CNI project (a device of each Pod, or a bridge of the node), kubenet.
///
/// Not `weave`, a bridge of all nodes.
pub(super) const POD_DEVICES: [&str; 8] =
    ["cali", "eni", "azv", "lxc", "gke", "veth", "cni", "cbr0"];

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

/// Makes the names of two sets from the name that they have in common.
macro_rules! per_family {
    ($name:literal) => {
        crate::dataplane::packet_rules::PerFamily::new(concat!($name, "-4"), concat!($name, "-6"))
    };
}
pub(super) use per_family;

/// Returns the name of the chain that admits only certain sources to `frontend`.
pub(super) fn ranges(frontend: &Frontend) -> Arc<str> {
    // Names may not contain colons.
    let address = frontend.address.to_string().replace(':', "_");
    let protocol = frontend.protocol.to_string().to_lowercase();
    format!("ranges-{protocol}-{address}-{}", frontend.port).into()
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
