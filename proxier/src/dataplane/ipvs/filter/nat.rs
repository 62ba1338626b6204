//! NAT: the shield of frontends, and masquerading.
//!
//! A connection to a frontend is translated to its own destination. Rules of portmap, Docker and CRI-O send all
//! connections at a hostPort of any local address to a Pod, and service addresses are local. After a destination NAT, the
//! kernel runs no further NAT chain for a connection; `accept` ends one chain only. The result is the binding that every
//! connection without NAT gets, so it costs one lookup.

use super::chains::is_frontend;
use super::config::FilterConfig;
use crate::dataplane::packet_rules::{FAMILIES, SOURCE_NAT, postrouting, rule};
use nftables::{Chain, Hook, Rule, Statement};

/// Before other programs' destination NAT (-100).
const SHIELD: i32 = -101;
/// Returns the NAT chains.
pub(super) fn chains(config: &FilterConfig) -> [Chain; 3] {
    [
        Chain::at("shield-prerouting", Hook::NatPrerouting(SHIELD), shield()),
        Chain::at("shield-output", Hook::NatOutput(SHIELD), shield()),
        Chain::at("postrouting", SOURCE_NAT, postrouting(config, None)),
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
