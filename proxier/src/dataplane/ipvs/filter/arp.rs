//! The table of family `arp`: this node neither claims nor uses load-balancer and external addresses on its
//! links (`--arp=services`).
//!
//! Linux answers an ARP request for any local address on any link, and sends its own requests with the
//! source address of the packet that waits. Service addresses are local on every node, so every node would
//! claim them, and a speaker such as MetalLB's could not move them. `arp_ignore` and `arp_announce`
//! (`--arp=strict`) prevent that for all addresses of the host. This table does it for service addresses only:
//!
//! ```text
//!  request ─▶ input: target is one of the addresses? drop
//!  our request ─▶ output: sender is one of the addresses? the link's own address instead
//! ```
//!
//! An address that an interface has is no service address, so its owner answers. A speaker with raw sockets
//! does not pass these hooks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::config::NodeFacts;
use super::names::{ARP_ADDRESSES, ARP_SENDERS, OWN_SENDER, sender};
use crate::cluster::model::Family;
use crate::dataplane::packet_rules::{Part, lookup, rule, within};
use nftables::{
    Chain, Hook, Key, KeyType, Match, Rule, Selector, Set, SetKind, Statement, Table, Value,
    Verdict,
};

/// The IPv4 address that each link has of its own, by its name.
pub(crate) type LinkAddresses = BTreeMap<Arc<str>, Ipv4Addr>;

/// Returns the sets of the table, without elements.
pub(super) fn sets() -> Table {
    let mut table = Table::default();
    let address = [KeyType::Address(Family::V4)];
    table.add_set(Set::new(ARP_ADDRESSES, address, SetKind::Set));
    let link = [KeyType::Interface];
    table.add_set(Set::new(ARP_SENDERS, link, SetKind::Verdicts));
    table
}

/// Returns the chains that do not depend on any Service or link.
pub(super) fn chains(node: &NodeFacts) -> [Chain; 3] {
    let treat = |selector, verdict: Verdict| {
        let is_service = within([selector], ARP_ADDRESSES);
        [rule([Match::ArpRequest.into(), is_service, verdict.into()])]
    };
    let drop = treat(Selector::ArpTarget, Verdict::Drop);
    let own = treat(Selector::ArpSender, Verdict::Goto(OWN_SENDER.into()));
    [
        Chain::at("input", Hook::ArpInput, drop),
        Chain::at("output", Hook::ArpOutput, own),
        Chain::new(OWN_SENDER, own_sender(node)),
    ]
}

/// Replaces the sender by the link's address. On a link without an address, replaces it by the node's.
fn own_sender(node: &NodeFacts) -> Vec<Rule> {
    let by_link = lookup([Selector::OutputInterface], ARP_SENDERS);
    let node = node.addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(rule([Statement::SetArpSender(*address)])),
        IpAddr::V6(_) => None,
    });
    [rule([by_link])].into_iter().chain(node).collect()
}

/// Adds the parts of `links`.
pub(super) fn link_parts(links: &LinkAddresses, add: &mut dyn FnMut(Part)) {
    for (link, &address) in links {
        if let Some(link) = Value::interface(link) {
            let verdict = Verdict::Goto(sender(address));
            add(Part::entry(ARP_SENDERS, Key::new([link]), verdict));
        }
    }
    // Several links may have one address.
    for address in links.values().copied().collect::<BTreeSet<_>>() {
        let set = rule([Statement::SetArpSender(address)]);
        add(Part::ArpChain(Chain::new(sender(address), [set])));
    }
}
