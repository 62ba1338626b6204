//! Marks packets for frontends while they pass the input hook, so that a rule of ours in a chain of another
//! program can accept them ([`crate::host::ForeignChains`]).
//!
//! Tables share nothing but the packet's mark. The bit exists from the hook's first chain to the last one
//! before IPVS, which compares whole marks:
//!
//! ```text
//!  input:  first: set bit ─▶ other programs' chains (usually -150 to 50) ─▶ 96: clear bit ─▶ 97: inside ─▶ IPVS
//! ```
//!
//! The first chain clears the bit of every packet. Otherwise a mark of another program could open any port of
//! the node.
//!
//! A rule cannot refer to a set in another table, and connection labels are missing on connections that began before the
//! first rule with them; so it is a bit of the mark.

use super::chains::{BEFORE_INSIDE_INPUT, is_frontend, ping, to_health_check};
use super::config::{FilterConfig, MarkBit};
use super::names::{CLEAR_PASSING, MARK_PASSING, NODE_PORTS};
use crate::dataplane::packet_rules::{
    FAMILIES, SERVICE_ADDRESSES, addressed_to, clear_bit, frontend_key, rule, within,
};
use nftables::{Chain, Hook, Match, NewMark, Rule, Statement};

/// `NF_IP_PRI_FIRST`: before the chains of all other programs.
const FIRST_INPUT: Hook = Hook::Input(i32::MIN);

/// Returns the chains, if the configuration asks for them.
pub(super) fn chains(config: &FilterConfig) -> Vec<Chain> {
    let Some(bit) = config.input_accept_bit else {
        return Vec::new();
    };
    let clear = [clear_bit(bit)];
    vec![
        Chain::at(MARK_PASSING, FIRST_INPUT, mark(config, bit)),
        Chain::at(CLEAR_PASSING, BEFORE_INSIDE_INPUT, clear),
    ]
}

fn mark(config: &FilterConfig, bit: MarkBit) -> Vec<Rule> {
    let set = || Statement::SetMark(NewMark::With(bit.mark()));
    let mut rules = vec![clear_bit(bit)];
    for family in FAMILIES {
        let to_node_port = within(frontend_key(family), NODE_PORTS.of(family));
        rules.push(rule([is_frontend(family), set()]));
        rules.push(rule([to_node_port, set()]));
    }
    // For ICMP errors of IPVS connections, such as "fragmentation needed", and for connections whose frontend
    // was removed. New connections to these addresses pass only by the rules above.
    for family in FAMILIES {
        let to_service = addressed_to(family, SERVICE_ADDRESSES);
        rules.push(rule([Match::Established.into(), to_service, set()]));
    }
    rules.push(rule([to_health_check(), set()]));
    for family in FAMILIES.into_iter().filter(|_| config.answer_ping) {
        rules.push(ping(family, set()));
    }
    rules
}
