//! The chains and sets that do not depend on any Service.

use std::sync::Arc;
use std::time::Duration;

use super::config::{FilterConfig, LocalMode, MarkBit, NodeFacts};
use super::input_accept;
use super::names::*;
use super::nat;
use crate::model::{Cidr, Family, Networks, Protocol};
use crate::nftables::{
    Chain, Hook, KeyType, Match, NewMark, Reject, Relation, Rule, Selector, Set, SetKind,
    Statement, Table, Verdict,
};

/// Before IPVS (98 and 99, `net/netfilter/ipvs/ip_vs_core.c`), and after filters (0).
const BEFORE_IPVS_INPUT: Hook = Hook::Input(97);
/// Before [`BEFORE_IPVS_INPUT`], which sets firewall marks.
pub(super) const BEFORE_INSIDE_INPUT: Hook = Hook::Input(96);
/// Before IPVS looks for a virtual server (-98), and after other programs' destination NAT (-100).
const BEFORE_IPVS_OUTPUT: Hook = Hook::Output(-99);
/// After IPVS (99), for packets that it leaves to processes of this node.
const AFTER_IPVS_INPUT: Hook = Hook::Input(101);
/// Before connection tracking (-200) and other programs' usual chains, for packets that IPVS sends.
const AFTER_IPVS_OUTPUT: Hook = Hook::Output(-300);
/// After connection tracking (-200), and before other programs' destination NAT (-100).
const OUTPUT: Hook = Hook::Output(-110);
/// With other programs' filters (`NF_IP_PRI_FILTER`), so that theirs may drop before ours reject.
const INPUT: Hook = Hook::Input(0);
/// After source NAT, where masquerading needs the bit.
const LEAVING: Hook = Hook::Postrouting(300);

/// How long a packet's earlier mark is kept. A packet passes from the hook that saves it to the hook that
/// restores it within microseconds.
const MARK_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of connections whose earlier marks are kept. Packets of further connections lose their
/// marks.
const MAX_MARKS: u32 = 65_536;

pub(super) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// How packets of clients inside the cluster are recognised on this node.
enum Inside<'a> {
    /// The source address is in one of these networks.
    Networks(&'a [Cidr]),
    /// The input interface has this name.
    Bridge(&'a Arc<str>),
    /// The name of the input interface starts with this text.
    InterfacePrefix(&'a Arc<str>),
}

impl<'a> Inside<'a> {
    fn on(config: &'a FilterConfig, node: &'a NodeFacts) -> Self {
        match &config.local_mode {
            LocalMode::ClusterCidr(networks) => Self::Networks(networks),
            LocalMode::NodeCidr => Self::Networks(&node.pod_cidrs),
            LocalMode::BridgeInterface(name) => Self::Bridge(name),
            LocalMode::InterfaceNamePrefix(prefix) => Self::InterfacePrefix(prefix),
        }
    }

    /// Returns matches; a packet from inside satisfies at least one of them.
    fn matches(&self) -> Vec<Match> {
        match *self {
            Self::Networks(networks) => FAMILIES
                .into_iter()
                .filter_map(|family| networks_of(family, networks))
                .map(|networks| Match::Source(Relation::Is, networks))
                .collect(),
            Self::Bridge(name) => vec![Match::InputInterface(Relation::Is, name.clone())],
            Self::InterfacePrefix(prefix) => {
                vec![Match::InputInterfacePrefix(Relation::Is, prefix.clone())]
            }
        }
    }
}

/// Returns the table of a node without Services.
pub(super) fn skeleton(config: &FilterConfig, node: &NodeFacts) -> Table {
    let inside = Inside::on(config, node);
    let mut table = Table::default();
    for family in FAMILIES {
        sets(&mut table, family);
    }
    for (name, key, kind) in [
        (HEALTH_CHECK_PORTS, KeyType::Port, SetKind::Set),
        (INSIDE_MARKS, KeyType::Mark, SetKind::Set),
        (
            MARKS_BEFORE,
            KeyType::ConnectionId,
            SetKind::Learned {
                timeout: MARK_TIMEOUT,
                size: MAX_MARKS,
            },
        ),
    ] {
        table.add_set(Set::new(name, [key], kind));
    }
    for chain in [
        Chain::at("input", INPUT, guarded(NEW_INPUT)),
        Chain::new(NEW_INPUT, new_input(config)),
        Chain::at("output", OUTPUT, guarded(NEW_OUTPUT)),
        Chain::new(NEW_OUTPUT, new_output()),
        Chain::at("inside-input", BEFORE_IPVS_INPUT, inside_input(&inside)),
        Chain::at(
            "inside-output",
            BEFORE_IPVS_OUTPUT,
            // Processes of this node are inside the cluster in every mode.
            [rule([goto(INSIDE_CHAIN)])],
        ),
        Chain::at("restore-output", AFTER_IPVS_OUTPUT, [restore_mark()]),
        Chain::at("restore-input", AFTER_IPVS_INPUT, after_ipvs_input(config)),
        Chain::at("leaving", LEAVING, [clear_bit(config.masquerade_bit)]),
        Chain::new(CLUSTER_IP, cluster_ip(config, &inside)),
        Chain::new(EXTERNAL, [rule([goto(MASQUERADE)])]),
        Chain::new(LOCAL_ONLY, from_service_addresses()),
        Chain::new(MASQUERADE, masquerade(config)),
        Chain::new(REFUSE, refuse()),
        Chain::new(UNSERVED, unserved()),
        Chain::new(NOT_HERE, not_here(&inside)),
        Chain::new(INSIDE_CHAIN, inside_marks()),
        Chain::new(RESTORE, restore()),
    ]
    .into_iter()
    .chain(nat::chains(config))
    {
        table.add_chain(chain);
    }
    input_accept::add_to(&mut table, config);
    table
}

fn sets(table: &mut Table, family: Family) {
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
    for name in [SERVICE_ADDRESSES, PINGABLE] {
        table.add_set(Set::new(name.of(family), [address], SetKind::Set));
    }
    let pair = [address, address];
    table.add_set(Set::new(HAIRPIN.of(family), pair, SetKind::Set));
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

/// Masquerades connections to cluster IPs from outside the cluster.
///
/// Without masquerading, the answers would not return through this node. Connections of the node itself are
/// masqueraded too, unless [`Inside`] matches them.
fn cluster_ip(config: &FilterConfig, inside: &Inside<'_>) -> Vec<Rule> {
    if config.masquerade_all {
        return vec![rule([goto(MASQUERADE)])];
    }
    match *inside {
        Inside::Networks(networks) => FAMILIES
            .map(|family| match networks_of(family, networks) {
                Some(inside) => {
                    let outside = Match::Source(Relation::IsNot, inside);
                    rule([outside.into(), goto(MASQUERADE)])
                }
                // Without networks, inside and outside look the same. Only a service address as
                // the source is certainly this node.
                None => from_service_address(family),
            })
            .into(),
        Inside::Bridge(name) => {
            let outside = Match::InputInterface(Relation::IsNot, name.clone());
            vec![rule([outside.into(), goto(MASQUERADE)])]
        }
        Inside::InterfacePrefix(prefix) => {
            let outside = Match::InputInterfacePrefix(Relation::IsNot, prefix.clone());
            vec![rule([outside.into(), goto(MASQUERADE)])]
        }
    }
}

fn from_service_addresses() -> Vec<Rule> {
    FAMILIES.map(from_service_address).into()
}

/// Masquerades connections of this node whose source is a service address.
///
/// The node of the endpoint has the same service address, so it would keep the answers for itself.
fn from_service_address(family: Family) -> Rule {
    let from = Statement::In {
        key: [Selector::Source(family)].into(),
        set: SERVICE_ADDRESSES.of(family).into(),
    };
    rule([from, goto(MASQUERADE)])
}

/// Sets the masquerade bit, except on packets from loopback addresses, which stay on this node.
fn masquerade(config: &FilterConfig) -> Vec<Rule> {
    let loopback = [(Family::V4, "127.0.0.0/8"), (Family::V6, "::1/128")];
    let loopback = loopback.map(|(family, network)| {
        let networks = Networks::new(family, network.parse::<Cidr>());
        let from = Match::Source(Relation::Is, networks);
        rule([from.into(), Verdict::Return.into()])
    });
    // Only a bit, because the other bits of the mark belong to other programs.
    let mark = NewMark::With(config.masquerade_bit.mark());
    let [v4, v6] = loopback;
    vec![v4, v6, rule([Statement::SetMark(mark)])]
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
    let mut rules = vec![restore_mark(), clear_bit(config.masquerade_bit)];
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

/// Drops new connections from outside the cluster.
///
/// A rejection would end the client's attempt. After a drop, the client repeats its SYN, and a load
/// balancer that has just removed this node sends the SYN to another node.
fn not_here(inside: &Inside<'_>) -> Vec<Rule> {
    let mut rules = vec![
        rule([Match::Established.into(), Verdict::Return.into()]),
        // Processes of this node are inside in every mode.
        rule([Match::SourceIsLocal.into(), Verdict::Return.into()]),
    ];
    for inside in inside.matches() {
        rules.push(rule([inside.into(), Verdict::Return.into()]));
    }
    rules.push(rule([Verdict::Drop.into()]));
    rules
}

/// Sends packets from inside to the chain that sets firewall marks.
fn inside_input(inside: &Inside<'_>) -> Vec<Rule> {
    let to_chain = |inside: Match| rule([inside.into(), goto(INSIDE_CHAIN)]);
    inside.matches().into_iter().map(to_chain).collect()
}

fn inside_marks() -> Vec<Rule> {
    FAMILIES
        .map(|family| rule([frontend_map(family, INSIDE)]))
        .into()
}

/// Restores the earlier mark of packets with a firewall mark of ours.
fn restore_mark() -> Rule {
    let has_inside_mark = Statement::In {
        key: [Selector::Mark].into(),
        set: INSIDE_MARKS.into(),
    };
    rule([has_inside_mark, Verdict::Jump(RESTORE.into()).into()])
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

/// Returns the chain that saves a packet's mark, if it is not 0, and sets the firewall mark `mark`.
pub(super) fn firewall_mark(mark: u32) -> Chain {
    let remember = Statement::Remember {
        map: MARKS_BEFORE.into(),
        key: Selector::ConnectionId,
        data: Selector::Mark,
    };
    Chain::new(
        inside(mark),
        [
            // Most packets have no mark. They need no element, because `restore` sets 0 without
            // one.
            rule([Match::Marked.into(), remember]),
            rule([Statement::SetMark(NewMark::To(mark))]),
        ],
    )
}

pub(super) fn clear_bit(bit: MarkBit) -> Rule {
    let bit = bit.mark();
    let cleared = Statement::SetMark(NewMark::Without(bit));
    rule([Match::HasMark(bit).into(), cleared])
}

fn networks_of(family: Family, networks: &[Cidr]) -> Option<Networks> {
    let networks = Networks::new(family, networks.iter().copied());
    (!networks.is_empty()).then_some(networks)
}

fn frontend_map(family: Family, map: PerFamily) -> Statement {
    Statement::VerdictMap {
        key: frontend_key(family),
        map: map.of(family).into(),
    }
}

/// Matches packets to [`FRONTENDS`].
pub(super) fn is_frontend(family: Family) -> Statement {
    Statement::In {
        key: frontend_key(family),
        set: FRONTENDS.of(family).into(),
    }
}

/// Returns the values of a packet that are the key of its frontend.
pub(super) fn frontend_key(family: Family) -> Box<[Selector]> {
    [
        Selector::Destination(family),
        Selector::Protocol,
        Selector::DestinationPort,
    ]
    .into()
}

pub(super) fn addressed_to(family: Family, set: PerFamily) -> Statement {
    Statement::In {
        key: [Selector::Destination(family)].into(),
        set: set.of(family).into(),
    }
}

pub(super) fn to_health_check() -> Statement {
    Statement::In {
        key: [Selector::TcpDestinationPort].into(),
        set: HEALTH_CHECK_PORTS.into(),
    }
}

/// Returns the rule for pings of service addresses that answer them.
pub(super) fn ping(family: Family, then: Statement) -> Rule {
    let to = addressed_to(family, PINGABLE);
    rule([Match::EchoRequest(family).into(), to, then])
}

fn goto(chain: &str) -> Statement {
    Verdict::Goto(Arc::from(chain)).into()
}

pub(super) fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule::new(statements)
}
