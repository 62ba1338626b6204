//! Marks packets of Services while they pass the forward and the input hook, so that a rule of ours in a chain of another
//! program can accept them ([`crate::host::ForeignChains`]).
//!
//! ```text
//!  forward, input: first: set bit ─▶ other programs' chains ─▶ last: clear bit
//! ```
//!
//! The first chain clears the bit of every packet. Otherwise a mark of another program could open any port. It sets the bit
//! in both directions of a connection that was translated at a frontend. Packets for Pods pass the forward hook. Those for
//! endpoints at an address of this node, for health checks and pings pass the input hook.

use nftables::{Chain, Hook, Match, NewMark, Rule, Selector, Statement};

use super::chains::original_key;
use super::names::{CLUSTER_IPS, EXTERNAL_FRONTENDS};
use crate::dataplane::ipvs::filter::{FilterConfig, MarkBit};
use crate::dataplane::packet_rules::*;

/// `NF_IP_PRI_FIRST` and `NF_IP_PRI_LAST`: before and after the chains of all other programs.
const FIRST: i32 = i32::MIN;
const LAST: i32 = i32::MAX;

/// Returns the chains, if the configuration asks for them. At the input hook, another chain clears the bit.
pub(super) fn chains(config: &FilterConfig) -> Vec<Chain> {
    let mut chains = Vec::new();
    if let Some(bit) = config.forward_accept_bit {
        let (first, last) = (Hook::Forward(FIRST), Hook::Forward(LAST));
        chains.extend(mark("mark-forward", "passing-forward", first, config, bit));
        chains.push(Chain::at("clear-forward", last, [clear_bit(bit)]));
    }
    if let Some(bit) = config.input_accept_bit {
        let first = Hook::Input(FIRST);
        chains.extend(mark("mark-input", "passing-input", first, config, bit));
    }
    chains
}

/// Returns the chain at `first`, and that of translated connections.
fn mark(
    name: &str,
    translated: &str,
    first: Hook,
    config: &FilterConfig,
    bit: MarkBit,
) -> [Chain; 2] {
    let of_translated = rule([Match::Translated.into(), goto(translated)]);
    [
        Chain::at(name, first, [clear_bit(bit), of_translated]),
        Chain::new(translated, passing(config, bit)),
    ]
}

fn passing(config: &FilterConfig, bit: MarkBit) -> Vec<Rule> {
    let set = || Statement::SetMark(NewMark::With(bit.mark()));
    let original = |family, set| within([Selector::OriginalDestination(family)], set);
    let mut rules = Vec::new();
    for family in FAMILIES {
        let to_external = within(original_key(family), EXTERNAL_FRONTENDS.of(family));
        rules.push(rule([to_external, set()]));
        // Cluster IPs belong to Services only.
        let to_cluster_ip = original(family, CLUSTER_IPS.of(family));
        rules.push(rule([to_cluster_ip, set()]));
        // For connections whose frontend an edit removed.
        let to_service = || original(family, SERVICE_ADDRESSES.of(family));
        rules.push(rule([Match::Established.into(), to_service(), set()]));
        let health_check = within([Selector::OriginalDestinationPort], HEALTH_CHECK_PORTS);
        rules.push(rule([to_service(), health_check, set()]));
        if config.answer_ping {
            let pingable = original(family, PINGABLE.of(family));
            let ping = Match::EchoRequest(family).into();
            rules.push(rule([ping, pingable, set()]));
        }
    }
    rules
}
