//! Clients inside the cluster at frontends with policy Local, where they reach the endpoints of all nodes.
//!
//! IPVS finds these endpoints by a firewall mark, which a packet has only while it passes IPVS:
//!
//! ```text
//!  input, output: ours → 0 ─▶ frontend? ─▶ client inside? ─▶ save the mark, set ours ─▶ IPVS
//!  output -300:   restore the mark; masquerade what would not return, unless the endpoint is here ─▶ endpoint
//! ```
//!
//! A client inside is masqueraded after IPVS chose its endpoint, because only endpoints on other nodes need it. Endpoints
//! on this node are listed by mark: the author of a Service decides which addresses its list has.

use std::time::Duration;

use super::config::{FilterConfig, NodeFacts};
use super::names::*;
use crate::dataplane::packet_rules::*;
use nftables::{
    Chain, Hook, KeyType, Match, NewMark, Rule, Selector, Set, SetKind, Statement, Verdict,
};

/// Before IPVS (98 and 99, `net/netfilter/ipvs/ip_vs_core.c`), and after filters (0).
const BEFORE_IPVS_INPUT: Hook = Hook::Input(97);
/// Before IPVS looks for a virtual server (-98), and after other programs' destination NAT (-100).
const BEFORE_IPVS_OUTPUT: Hook = Hook::Output(-99);
/// After IPVS (-98), for packets of processes of this node to an endpoint at an address of this node: they continue
/// from IPVS in the hook in which they are.
const DELIVERED_OUTPUT: Hook = Hook::Output(-97);
/// Before connection tracking (-200) and other programs' usual chains, for packets that IPVS sends.
const AFTER_IPVS_OUTPUT: Hook = Hook::Output(-300);

/// How long a packet's earlier mark is kept. A packet passes from the hook that saves it to the hook that
/// restores it within microseconds.
const MARK_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of connections whose earlier marks are kept.
const MAX_MARKS: u32 = 65_536;

/// Returns the map of earlier marks.
pub(super) fn marks_before() -> Set {
    let learned = SetKind::Learned {
        timeout: MARK_TIMEOUT,
        size: MAX_MARKS,
    };
    Set::new(MARKS_BEFORE, [KeyType::ConnectionId], learned)
}

/// Returns the chains, except those of firewall marks.
pub(super) fn chains(config: &FilterConfig, node: &NodeFacts) -> [Chain; 11] {
    let clients = LocalClients::on(config, node);
    let to_endpoint_chain = [with_inside_mark(goto(TO_ENDPOINT))];
    let delivered = [with_inside_mark(jump(RESTORE))];
    [
        Chain::at("inside-input", BEFORE_IPVS_INPUT, before_ipvs()),
        Chain::at("inside-output", BEFORE_IPVS_OUTPUT, before_ipvs()),
        Chain::at("restore-output", AFTER_IPVS_OUTPUT, to_endpoint_chain),
        Chain::at("restore-delivered", DELIVERED_OUTPUT, delivered),
        Chain::new(LOCAL_ONLY, local_only(&clients)),
        Chain::new(NOT_HERE, not_here(&clients)),
        Chain::new(INSIDE_CHAIN, inside_marks()),
        Chain::new(INSIDE_CLIENTS, pass(&clients)),
        Chain::new(TO_ENDPOINT, to_endpoint()),
        Chain::new(TO_ENDPOINT_HERE, to_endpoint_here(config)),
        Chain::new(RESTORE, restore()),
    ]
}

/// Masquerades connections from clients inside the cluster on other nodes, because the answer of an
/// endpoint on a third node would not return through this one. [`to_endpoint_here`] revokes it.
fn local_only(clients: &LocalClients) -> Vec<Rule> {
    // Clients outside keep their address. [`to_endpoint`] decides about processes of this node.
    let inside = rule([jump(INSIDE_CLIENTS)]);
    let mut rules = vec![inside, return_for(Match::SourceIsLocal)];
    rules.extend(clients.elsewhere.iter().cloned());
    rules
}

/// Returns for clients inside the cluster. Ends the hook's chain for others, so that their packets get no mark.
fn pass(clients: &LocalClients) -> Vec<Rule> {
    let mut rules = clients.return_for_inside();
    rules.push(rule([Verdict::Accept.into()]));
    rules
}

/// Drops new connections from outside the cluster.
fn not_here(clients: &LocalClients) -> Vec<Rule> {
    let mut rules = vec![return_for(Match::Established)];
    rules.extend(clients.not_here());
    rules
}

/// Returns the rules before IPVS looks for a virtual server.
///
/// A packet that another program gave a mark of ours loses it: IPVS would take it to our virtual server,
/// whatever its destination.
fn before_ipvs() -> Vec<Rule> {
    let no_mark = Statement::SetMark(NewMark::To(0));
    vec![with_inside_mark(no_mark), rule([goto(INSIDE_CHAIN)])]
}

fn inside_marks() -> Vec<Rule> {
    FAMILIES
        .map(|family| rule([frontend_map(family, INSIDE)]))
        .into()
}

/// Applies `then` to packets with a firewall mark of ours.
pub(super) fn with_inside_mark(then: Statement) -> Rule {
    rule([within([Selector::Mark], INSIDE_MARKS), then])
}

/// Restores the earlier mark of a packet from inside that IPVS sends to an endpoint, and masquerades a connection
/// of this node to an endpoint on another one.
///
/// The source may be an address that the endpoint's node has too: a service address, or a load-balancer address on an
/// interface. The answers would stay on that node.
fn to_endpoint() -> Vec<Rule> {
    let [v4, v6] = FAMILIES.map(|family| {
        let endpoint = [Selector::Destination(family), Selector::Mark];
        let is_here = within(endpoint, INSIDE_HERE.of(family));
        rule([is_here, goto(TO_ENDPOINT_HERE)])
    });
    let (is_new, is_own) = (Match::New.into(), Match::SourceIsLocal.into());
    let masquerade = rule([is_new, is_own, goto(MASQUERADE)]);
    vec![v4, v6, rule([jump(RESTORE)]), masquerade]
}

/// Restores the earlier mark of a packet from inside that IPVS sends to an endpoint on this node, and revokes the
/// masquerading of a client on another node: the answers pass this node anyway.
fn to_endpoint_here(config: &FilterConfig) -> Vec<Rule> {
    // Other software does not know a service address as one of this node.
    let [v4, v6] = FAMILIES.map(from_service_address);
    vec![
        rule([jump(RESTORE)]),
        clear_bit(config.masquerade_bit),
        v4,
        v6,
    ]
}

/// Sets the saved mark of the packet's connection. If none was saved, the earlier mark was 0.
fn restore() -> Vec<Rule> {
    let saved = NewMark::Mapped {
        key: Selector::ConnectionId,
        map: MARKS_BEFORE.into(),
    };
    vec![
        rule([Statement::SetMark(saved), Verdict::Return.into()]),
        rule([Statement::SetMark(NewMark::To(0))]),
    ]
}

/// Returns the chain that gives packets of clients inside the cluster the firewall mark `mark`, and saves the mark
/// that they had.
///
/// One rule saves and sets: if the map is full, the packet keeps its mark, by which other programs enforce
/// policies, and reaches the endpoints that clients outside reach.
pub(super) fn firewall_mark(mark: u32) -> Chain {
    let set = || Statement::SetMark(NewMark::To(mark));
    let remember = Statement::Remember {
        map: MARKS_BEFORE.into(),
        key: Selector::ConnectionId,
        data: Selector::Mark,
    };
    Chain::new(
        inside(mark),
        [
            rule([jump(INSIDE_CLIENTS)]),
            // Most packets have no mark. They need no element, because `restore` sets 0 without
            // one.
            rule([Match::Unmarked.into(), set(), Verdict::Return.into()]),
            rule([remember, set()]),
        ],
    )
}
