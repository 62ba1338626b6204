//! NAT: the shield of frontends, and masquerading.
//!
//! A connection to a frontend is translated to its own destination. Rules of portmap, Docker and CRI-O send all
//! connections at a hostPort of any local address to a Pod, and service addresses are local. After a destination NAT, the
//! kernel runs no further NAT chain for a connection; `accept` ends one chain only. The result is the binding that every
//! connection without NAT gets, so it costs one lookup.

use std::ops::RangeInclusive;

use super::chains::is_frontend;
use super::config::FilterConfig;
use super::names::HAIRPIN;
use crate::cluster::model::Protocol;
use crate::dataplane::packet_rules::{FAMILIES, rule, within};
use nftables::{Chain, Hook, Match, Rule, Selector, Statement};

/// Before other programs' destination NAT (-100).
const SHIELD: i32 = -101;
/// Before other programs' source NAT (100). Not 100 too: of two chains with one priority, the kernel runs
/// the one first that was registered last.
const SOURCE_NAT: Hook = Hook::NatPostrouting(99);

/// Returns the NAT chains.
pub(super) fn chains(config: &FilterConfig) -> [Chain; 3] {
    [
        Chain::at("shield-prerouting", Hook::NatPrerouting(SHIELD), shield()),
        Chain::at("shield-output", Hook::NatOutput(SHIELD), shield()),
        Chain::at("postrouting", SOURCE_NAT, postrouting(config)),
    ]
}

/// Binds each new connection to a frontend to its destination.
///
/// NAT rules of portmap, Docker and CRI-O send every connection to a hostPort at a local address to a
/// Pod, and service addresses are local. `accept` would end only our own chain. After a destination
/// NAT, even to the same address, the kernel runs no further NAT chain for the connection
/// (`nf_nat_inet_fn`). The result equals the binding that each connection without NAT gets, so the
/// entry of the connection does not get the status `IPS_DST_NAT`, and IPVS sees no difference.
///
/// Node ports have no shield, as in kube-proxy: another program may use the port first.
fn shield() -> Vec<Rule> {
    FAMILIES
        .map(|family| rule([is_frontend(family), Statement::KeepDestination(family)]))
        .into()
}

fn postrouting(config: &FilterConfig) -> Vec<Rule> {
    let has_ports = || Match::Protocol([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into());
    let masquerade = || Statement::Masquerade {
        ports: masquerade_ports(&config.node_ports),
    };
    let marked = Match::HasMark(config.masquerade_bit.mark());
    let mut rules = vec![rule([marked.into(), has_ports().into(), masquerade()])];
    for family in FAMILIES {
        // A Pod that reaches itself through a Service would see its own address as the source. It
        // would answer itself directly, and the answer would not pass IPVS.
        let pair = [Selector::Source(family), Selector::Destination(family)];
        let hairpin = within(pair, HAIRPIN.of(family));
        rules.push(rule([hairpin, has_ports().into(), masquerade()]));
    }
    rules
}

/// The free ports that masquerading needs: about as many as the kernel gives to the connections of processes
/// (32,768 to 60,999). They limit the connections to one endpoint, those in TIME_WAIT included.
const ENOUGH_PORTS: usize = 28_000;

/// Returns the larger of the two ranges of unprivileged ports that node ports leave free, or all
/// unprivileged ports if it is too small.
pub(crate) fn masquerade_ports(node_ports: &RangeInclusive<u16>) -> RangeInclusive<u16> {
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
