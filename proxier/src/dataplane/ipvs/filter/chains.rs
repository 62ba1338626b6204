//! The chains and sets that do not depend on any Service.
//!
//! Frontends are in a set, and those for clients outside in a map too: NAT chains and filter chains look them up, and the
//! kernel refuses a verdict map in both.

use super::arp;
use super::config::{FilterConfig, NodeFacts};
use super::input_accept;
use super::inside::{self, with_inside_mark};
use super::names::*;
use super::nat;
use crate::cluster::model::{Family, Protocol};
use crate::dataplane::packet_rules::*;
use nftables::{
    Chain, Hook, KeyType, Match, Reject, Rule, Selector, Set, SetKind, Statement, Table, Verdict,
};

/// Before `BEFORE_IPVS_INPUT`, which sets firewall marks.
pub(super) const BEFORE_INSIDE_INPUT: Hook = Hook::Input(96);
/// After IPVS (99), for packets that it leaves to processes of this node.
const AFTER_IPVS_INPUT: Hook = Hook::Input(101);
/// After connection tracking (-200), and before other programs' destination NAT (-100).
const OUTPUT: Hook = Hook::Output(-110);
/// With other programs' filters (`NF_IP_PRI_FILTER`), so that theirs may drop before ours reject.
const INPUT: Hook = Hook::Input(0);
/// After source NAT, where masquerading needs the bit.
const LEAVING: Hook = Hook::Postrouting(300);

/// Returns the sets of the tables, without elements.
pub(super) fn sets(config: &FilterConfig) -> Table {
    let mut table = Table::default();
    for family in FAMILIES {
        let address = KeyType::Address(family);
        let frontend = [address, KeyType::Protocol, KeyType::Port];
        for (name, kind) in [
            (FRONTENDS, SetKind::Set),
            (EXTERNAL_FRONTENDS, SetKind::Verdicts),
            (GUARDED, SetKind::Verdicts),
            (INSIDE, SetKind::Verdicts),
        ] {
            table.add_set(Set::new(name.of(family), frontend, kind));
        }
        if config.input_accept_bit.is_some() {
            table.add_set(Set::new(NODE_PORTS.of(family), frontend, SetKind::Set));
        }
        for name in [SERVICE_ADDRESSES, PINGABLE] {
            table.add_set(Set::new(name.of(family), [address], SetKind::Set));
        }
        let pair = [address, address];
        table.add_set(Set::new(HAIRPIN.of(family), pair, SetKind::Set));
        let marked = [address, KeyType::Mark];
        table.add_set(Set::new(INSIDE_HERE.of(family), marked, SetKind::Set));
    }
    table.add_set(Set::new(HEALTH_CHECK_PORTS, [KeyType::Port], SetKind::Set));
    table.add_set(Set::new(INSIDE_MARKS, [KeyType::Mark], SetKind::Set));
    table.add_set(inside::marks_before());
    table.arp = config.hides_arp.then(|| Box::new(arp::sets()));
    table
}

/// Returns the tables of a node without Services.
pub(super) fn skeleton(config: &FilterConfig, node: &NodeFacts) -> Table {
    let mut table = sets(config);
    for chain in [
        Chain::at("input", INPUT, guarded(NEW_INPUT)),
        Chain::new(NEW_INPUT, new_input(config)),
        Chain::at("output", OUTPUT, guarded(NEW_OUTPUT)),
        Chain::new(NEW_OUTPUT, new_output()),
        Chain::at("restore-input", AFTER_IPVS_INPUT, after_ipvs_input(config)),
        Chain::at("leaving", LEAVING, [clear_bit(config.masquerade_bit)]),
        Chain::new(CLUSTER_IP, cluster_ip(config, node)),
        Chain::new(EXTERNAL, [rule([goto(MASQUERADE)])]),
        Chain::new(MASQUERADE, set_bit(config.masquerade_bit)),
        Chain::new(REFUSE, refuse()),
        Chain::new(UNSERVED, unserved()),
    ]
    .into_iter()
    .chain(nat::chains(config))
    .chain(inside::chains(config, node))
    .chain(input_accept::chains(config))
    {
        table.add_chain(chain);
    }
    if let Some(arp) = &mut table.arp {
        for chain in arp::chains(node) {
            arp.add_chain(chain);
        }
    }
    table
}

/// Returns the rules for every packet: the guard of its frontend, then, for the first packets of a
/// connection, `new_connection`.
fn guarded(new_connection: &str) -> Vec<Rule> {
    let guards = FAMILIES.map(|family| rule([frontend_map(family, GUARDED)]));
    let mut rules: Vec<Rule> = guards.into();
    rules.push(rule([Match::New.into(), goto(new_connection)]));
    rules
}

/// Returns the rules that find the chain that decides about masquerading.
fn new_output() -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in FAMILIES {
        // The map first, because the set has its frontends too.
        rules.push(rule([frontend_map(family, EXTERNAL_FRONTENDS)]));
        rules.push(rule([is_frontend(family), goto(CLUSTER_IP)]));
    }
    rules
}

fn new_input(config: &FilterConfig) -> Vec<Rule> {
    let mut rules = new_output();
    // Load balancers may ask at a service address, whose other ports are refused below.
    rules.push(rule([to_health_check(), Verdict::Accept.into()]));
    for family in FAMILIES.into_iter().filter(|_| config.answer_ping) {
        rules.push(ping(family, Verdict::Accept.into()));
    }
    for family in FAMILIES {
        let to = addressed_to(family, SERVICE_ADDRESSES);
        rules.push(rule([to, goto(REFUSE)]));
    }
    rules
}

/// Rejects new connections. Established connections pass, because their destination may be draining.
fn refuse() -> Vec<Rule> {
    let tcp = Match::Protocol([Protocol::Tcp].into());
    vec![
        rule([Match::Established.into(), Verdict::Return.into()]),
        // As the kernel answers at a port without a listener, so that clients do not wait.
        rule([tcp.into(), Statement::Reject(Reject::TcpReset)]),
        rule([Statement::Reject(Reject::PortUnreachable)]),
    ]
}

fn after_ipvs_input(config: &FilterConfig) -> Vec<Rule> {
    let restore = with_inside_mark(jump(RESTORE));
    let mut rules = vec![restore, clear_bit(config.masquerade_bit)];
    for family in FAMILIES {
        let to = addressed_to(family, SERVICE_ADDRESSES);
        rules.push(rule([to, goto(UNSERVED)]));
    }
    rules
}

/// Rejects packets to frontends without a virtual server: the kernel refused it, or another program
/// deleted it. Otherwise a daemon that listens on all addresses would answer for the Service.
///
/// Answers pass, because a process of this node may connect from a service address. Health checks pass, as in
/// the chain before IPVS, and so do pings, about which that chain decides.
fn unserved() -> Vec<Rule> {
    let tcp = Match::Protocol([Protocol::Tcp].into());
    let others = Match::Protocol([Protocol::Udp, Protocol::Sctp].into());
    vec![
        rule([Match::Reply.into(), Verdict::Return.into()]),
        rule([to_health_check(), Verdict::Return.into()]),
        rule([tcp.into(), Statement::Reject(Reject::TcpReset)]),
        rule([others.into(), Statement::Reject(Reject::PortUnreachable)]),
    ]
}

/// Matches packets to [`FRONTENDS`].
pub(super) fn is_frontend(family: Family) -> Statement {
    within(frontend_key(family), FRONTENDS.of(family))
}

pub(super) fn to_health_check() -> Statement {
    within([Selector::TcpDestinationPort], HEALTH_CHECK_PORTS)
}

/// Returns the rule for pings of service addresses that answer them.
pub(super) fn ping(family: Family, then: Statement) -> Rule {
    let to = addressed_to(family, PINGABLE);
    rule([Match::EchoRequest(family).into(), to, then])
}
