//! Masquerading: which connections, and how.

use std::ops::RangeInclusive;

use ::nftables::{Hook, Match, Relation, Rule, Selector, Statement};

use super::{FAMILIES, HAIRPIN, MASQUERADE, from_service_address, goto, networks_of, rule, within};
use crate::cluster::model::{Cidr, Protocol};
use crate::dataplane::ipvs::filter::{FilterConfig, LocalMode, NodeFacts};

/// Before other programs' source NAT (100). Not 100 too: of two chains with one priority, the kernel runs
/// the one first that was registered last.
pub(crate) const SOURCE_NAT: Hook = Hook::NatPostrouting(99);

/// Masquerades connections to cluster IPs from outside the cluster.
///
/// Without masquerading, the answers would not return through this node. Connections of the node itself are
/// masqueraded too, unless `--detect-local-mode` matches them.
pub(crate) fn cluster_ip(config: &FilterConfig, node: &NodeFacts) -> Vec<Rule> {
    if config.masquerade_all {
        return vec![rule([goto(MASQUERADE)])];
    }
    let outside = |outside: Match| rule([outside.into(), goto(MASQUERADE)]);
    let networks: &[Cidr] = match &config.local_mode {
        LocalMode::ClusterCidr(networks) => networks,
        LocalMode::NodeCidr => &node.pod_cidrs,
        LocalMode::BridgeInterface(name) => {
            let device = Match::InputInterface(Relation::IsNot, name.clone());
            return vec![outside(device)];
        }
        LocalMode::InterfaceNamePrefix(prefix) => {
            let devices = Match::InputInterfacePrefix(Relation::IsNot, prefix.clone());
            return vec![outside(devices)];
        }
    };
    FAMILIES
        .map(|family| match networks_of(family, networks) {
            Some(inside) => outside(Match::Source(Relation::IsNot, inside)),
            // Without networks, inside and outside look the same. Only a service address as the source is certainly
            // this node.
            None => from_service_address(family),
        })
        .into()
}

/// Masquerades connections with the bit, and those of an endpoint to itself. `translated` are further conditions of the
/// latter.
pub(crate) fn postrouting(config: &FilterConfig, translated: Option<Match>) -> Vec<Rule> {
    let masquerade = || {
        let has_ports = Match::Protocol([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into());
        let ports = masquerade_ports(&config.node_ports);
        [has_ports.into(), Statement::Masquerade { ports }]
    };
    let of_those = |conditions: Vec<Statement>| {
        let statements: Vec<Statement> = conditions.into_iter().chain(masquerade()).collect();
        Rule::new(statements)
    };
    let marked = Match::HasMark(config.masquerade_bit.mark());
    let mut rules = vec![of_those(vec![marked.into()])];
    for family in FAMILIES {
        // A Pod that reaches itself through a Service would see its own address as the source. It would answer itself
        // directly, and the answer would not pass this node.
        let pair = [Selector::Source(family), Selector::Destination(family)];
        let hairpin = within(pair, HAIRPIN.of(family));
        let conditions = translated.iter().cloned().map(Statement::from);
        rules.push(of_those(conditions.chain([hairpin]).collect()));
    }
    rules
}

/// The free ports that masquerading needs: about as many as the kernel gives to the connections of processes
/// (32,768 to 60,999). They limit the connections to one endpoint, those in TIME_WAIT included.
const ENOUGH_PORTS: usize = 28_000;

/// Returns the larger of the two ranges of unprivileged ports that node ports leave free, or all
/// unprivileged ports if it is too small.
fn masquerade_ports(node_ports: &RangeInclusive<u16>) -> RangeInclusive<u16> {
    let below = 1024..=node_ports.start().saturating_sub(1);
    let above = node_ports.end().saturating_add(1).max(1024)..=u16::MAX;
    let larger = if below.len() > above.len() {
        below
    } else {
        above
    };
    if larger.len() < ENOUGH_PORTS {
        return 1024..=u16::MAX;
    }
    larger
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masquerading_uses_the_larger_free_range_if_it_has_enough_ports() {
        for (scenario, node_ports, expected) in [
            ("more ports above", 30_000..=32_767, 32_768..=65_535),
            ("no port above", 40_000..=65_535, 1024..=39_999),
            ("more ports below", 60_000..=61_000, 1024..=59_999),
            ("only privileged ports", 1..=500, 1024..=65_535),
            ("just enough ports", 1..=37_535, 37_536..=65_535),
            ("too few ports above", 1..=37_536, 1024..=65_535),
            ("too few ports below", 29_023..=65_535, 1024..=65_535),
            ("few ports on both sides", 20_000..=50_000, 1024..=65_535),
            ("a few ports", 1..=65_400, 1024..=65_535),
            ("all ports", 1..=65_535, 1024..=65_535),
        ] {
            assert_eq!(masquerade_ports(&node_ports), expected, "{scenario}");
        }
    }
}
