//! The chains and sets that are there whatever the Services are.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::names::*;
use super::{Config, DetectLocal};
use crate::model::{Cidr, Family, Networks, Protocol};
use crate::nftables::{
    Chain, Hook, Match, NewMark, Reject, Relation, Rule, Selector, Set, SetKind, Statement, Table,
    Type, Verdict,
};

/// Before IPVS (98) and after everything else that filters.
const BEFORE_IPVS_INPUT: Hook = Hook::Input(97);
/// Right before IPVS (-98), and after those who change destinations (-100).
const BEFORE_IPVS_OUTPUT: Hook = Hook::Output(-99);
/// After IPVS (99) has given a packet to a process of this node.
const AFTER_IPVS_INPUT: Hook = Hook::Input(101);
/// The first thing that happens to what IPVS sends on.
const AFTER_IPVS_OUTPUT: Hook = Hook::Output(-300);
/// Where destinations are not yet changed by anybody, and connections are known (-200).
const OUTPUT: Hook = Hook::Output(-110);
const INPUT: Hook = Hook::Input(0);
/// After the source was changed (100), the last chance before the packet leaves.
const LEAVING: Hook = Hook::Postrouting(300);

/// How long a mark is remembered: far longer than a packet is between two hooks.
const REMEMBERED: Duration = Duration::from_secs(60);
/// For how many connections at most. Beyond, packets lose the mark they had.
const MOST_REMEMBERED: u32 = 65_536;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// The table of a node without Services.
pub(super) fn skeleton(config: &Config) -> Table {
    let mut table = Table::default();
    for family in FAMILIES {
        sets(&mut table, family);
    }
    for (name, key, kind) in [
        (HEALTH_CHECK_PORTS, Type::Port, SetKind::Set),
        (INSIDE_MARKS, Type::Mark, SetKind::Set),
        (
            MARKS_BEFORE,
            Type::ConnectionId,
            SetKind::Learned {
                timeout: REMEMBERED,
                size: MOST_REMEMBERED,
            },
        ),
    ] {
        table.add_set(Set::new(name, [key], kind));
    }
    for chain in [
        Chain::at("input", INPUT, input(config)),
        Chain::at("output", OUTPUT, admission()),
        Chain::at("inside-input", BEFORE_IPVS_INPUT, inside_input(config)),
        Chain::at(
            "inside-output",
            BEFORE_IPVS_OUTPUT,
            [rule([goto(INSIDE_CHAIN)])],
        ),
        Chain::at("restore-output", AFTER_IPVS_OUTPUT, [restore_mark()]),
        Chain::at(
            "restore-input",
            AFTER_IPVS_INPUT,
            [restore_mark(), clear_bit(config)],
        ),
        Chain::at("postrouting", Hook::SourceNat, postrouting(config)),
        Chain::at("leaving", LEAVING, [clear_bit(config)]),
        Chain::new(CLUSTER_IP, cluster_ip(config)),
        Chain::new(EXTERNAL, [rule([goto(MASQUERADE)])]),
        Chain::new(LOCAL_ONLY, from_service_addresses()),
        Chain::new(MASQUERADE, masquerade(config)),
        Chain::new(REFUSE, refuse()),
        Chain::new(NOT_HERE, not_here(config)),
        Chain::new(INSIDE_CHAIN, inside()),
        Chain::new(RESTORE, restore()),
    ] {
        table.add_chain(chain);
    }
    table
}

fn sets(table: &mut Table, family: Family) {
    let address = Type::Address(family);
    let frontend = [address, Type::Protocol, Type::Port];
    for (name, kind) in [
        (FRONTENDS, SetKind::Verdicts),
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

/// What every client has to pass on the way to a frontend.
fn admission() -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in FAMILIES {
        rules.push(rule([frontend_map(family, GUARDED)]));
    }
    for family in FAMILIES {
        rules.push(rule([Match::New.into(), frontend_map(family, FRONTENDS)]));
    }
    rules
}

fn input(config: &Config) -> Vec<Rule> {
    let mut rules = admission();
    rules.push(rule([
        Statement::In {
            key: [Selector::TcpDestinationPort].into(),
            set: HEALTH_CHECK_PORTS.into(),
        },
        Verdict::Accept.into(),
    ]));
    for family in FAMILIES.into_iter().filter(|_| config.answer_ping) {
        let ping = Match::EchoRequest(family);
        let to = addressed_to(family, PINGABLE);
        rules.push(rule([ping.into(), to, Verdict::Accept.into()]));
    }
    for family in FAMILIES {
        let to = addressed_to(family, SERVICE_ADDRESSES);
        rules.push(rule([Match::New.into(), to, goto(REFUSE)]));
    }
    rules
}

/// Connections to cluster IPs of clients that are not inside come back by other ways than this node,
/// so they are masqueraded; so are those of the node, unless inside means its addresses, too.
fn cluster_ip(config: &Config) -> Vec<Rule> {
    if config.masquerade_all {
        return vec![rule([goto(MASQUERADE)])];
    }
    match &config.detect_local {
        DetectLocal::Networks(networks) => FAMILIES
            .map(|family| match networks_of(family, networks) {
                Some(inside) => {
                    let outside = Match::Source(Relation::IsNot, inside);
                    rule([outside.into(), goto(MASQUERADE)])
                }
                // Nobody is recognised. At least what comes from a service address can only come
                // back to this node.
                None => from_service_address(family),
            })
            .into(),
        DetectLocal::Bridge(name) => {
            let outside = Match::InputInterface(Relation::IsNot, name.clone());
            vec![rule([outside.into(), goto(MASQUERADE)])]
        }
        DetectLocal::InterfacePrefix(prefix) => {
            let outside = Match::InputInterfacePrefix(Relation::IsNot, prefix.clone());
            vec![rule([outside.into(), goto(MASQUERADE)])]
        }
    }
}

fn from_service_addresses() -> Vec<Rule> {
    FAMILIES.map(from_service_address).into()
}

/// A process of this node whose source is a service address, which nobody else could answer.
fn from_service_address(family: Family) -> Rule {
    let from = Statement::In {
        key: [Selector::Source(family)].into(),
        set: SERVICE_ADDRESSES.of(family).into(),
    };
    rule([from, goto(MASQUERADE)])
}

/// What comes from a loopback address stays on this node, and could not come back with another.
fn masquerade(config: &Config) -> Vec<Rule> {
    let loopback = [(Family::V4, "127.0.0.0/8"), (Family::V6, "::1/128")];
    let loopback = loopback.map(|(family, network)| {
        let networks = Networks::new(family, network.parse::<Cidr>());
        let from = Match::Source(Relation::Is, networks);
        rule([from.into(), Verdict::Return.into()])
    });
    let mark = NewMark::With(config.masquerade_bit.mark());
    let [v4, v6] = loopback;
    vec![v4, v6, rule([Statement::SetMark(mark)])]
}

/// Connections that were made before live on: they may be draining.
fn refuse() -> Vec<Rule> {
    let tcp = Match::Protocol([Protocol::Tcp].into());
    vec![
        rule([Match::Established.into(), Verdict::Return.into()]),
        rule([tcp.into(), Statement::Reject(Reject::TcpReset)]),
        rule([Statement::Reject(Reject::PortUnreachable)]),
    ]
}

/// Silence instead of a refusal: a load balancer that has just stopped using this node sends the
/// repeated SYN to another, and the client never notices.
fn not_here(config: &Config) -> Vec<Rule> {
    let mut rules = vec![
        rule([Match::Established.into(), Verdict::Return.into()]),
        rule([Match::SourceIsLocal.into(), Verdict::Return.into()]),
    ];
    for inside in from_inside(config) {
        rules.push(rule([inside.into(), Verdict::Return.into()]));
    }
    rules.push(rule([Verdict::Drop.into()]));
    rules
}

fn inside_input(config: &Config) -> Vec<Rule> {
    let to_chain = |inside: Match| rule([inside.into(), goto(INSIDE_CHAIN)]);
    from_inside(config).into_iter().map(to_chain).collect()
}

/// The comparisons any of which tells that a packet comes from a client inside the cluster.
fn from_inside(config: &Config) -> Vec<Match> {
    match &config.detect_local {
        DetectLocal::Networks(networks) => FAMILIES
            .into_iter()
            .filter_map(|family| networks_of(family, networks))
            .map(|networks| Match::Source(Relation::Is, networks))
            .collect(),
        DetectLocal::Bridge(name) => vec![Match::InputInterface(Relation::Is, name.clone())],
        DetectLocal::InterfacePrefix(prefix) => {
            vec![Match::InputInterfacePrefix(Relation::Is, prefix.clone())]
        }
    }
}

fn inside() -> Vec<Rule> {
    FAMILIES
        .map(|family| rule([frontend_map(family, INSIDE)]))
        .into()
}

fn restore_mark() -> Rule {
    let ours = Statement::In {
        key: [Selector::Mark].into(),
        set: INSIDE_MARKS.into(),
    };
    rule([ours, Verdict::Jump(RESTORE.into()).into()])
}

fn restore() -> Vec<Rule> {
    let before = NewMark::Mapped {
        key: Selector::ConnectionId,
        map: MARKS_BEFORE.into(),
    };
    vec![
        rule([Statement::SetMark(before), Verdict::Return.into()]),
        rule([Statement::SetMark(NewMark::To(0))]),
    ]
}

/// The chain that gives packets the firewall mark `mark`.
pub(super) fn firewall_mark(mark: u32) -> Chain {
    let remember = Statement::Remember {
        map: MARKS_BEFORE.into(),
        key: Selector::ConnectionId,
        data: Selector::Mark,
    };
    Chain::new(
        super::names::inside(mark),
        [
            rule([Match::Marked.into(), remember]),
            rule([Statement::SetMark(NewMark::To(mark))]),
        ],
    )
}

fn postrouting(config: &Config) -> Vec<Rule> {
    let ported = || Match::Protocol([Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into());
    let masquerade = || Statement::Masquerade {
        ports: masquerade_ports(&config.node_ports),
    };
    let marked = Match::HasMark(config.masquerade_bit.mark());
    let mut rules = vec![rule([marked.into(), ported().into(), masquerade()])];
    for family in FAMILIES {
        // A Pod that reaches itself has to answer to somebody else, or it would not see that the
        // answer belongs to its own question.
        let itself = Statement::In {
            key: [Selector::Source(family), Selector::Destination(family)].into(),
            set: HAIRPIN.of(family).into(),
        };
        rules.push(rule([itself, ported().into(), masquerade()]));
    }
    rules
}

/// The larger of the two ranges of unprivileged ports that node ports leave free.
fn masquerade_ports(node_ports: &RangeInclusive<u16>) -> RangeInclusive<u16> {
    let below = 1024..=node_ports.start().saturating_sub(1);
    let above = node_ports.end().saturating_add(1).max(1024)..=u16::MAX;
    match (below.len(), above.len()) {
        // Node ports everywhere leave no choice.
        (0, 0..=1) => 1024..=u16::MAX,
        (low, high) if low > high => below,
        _ => above,
    }
}

fn clear_bit(config: &Config) -> Rule {
    let bit = config.masquerade_bit.mark();
    let cleared = Statement::SetMark(NewMark::Without(bit));
    rule([Match::HasMark(bit).into(), cleared])
}

fn networks_of(family: Family, networks: &[Cidr]) -> Option<Networks> {
    let networks = Networks::new(family, networks.iter().copied());
    (!networks.is_empty()).then_some(networks)
}

fn frontend_map(family: Family, map: PerFamily) -> Statement {
    Statement::VerdictMap {
        key: [
            Selector::Destination(family),
            Selector::Protocol,
            Selector::DestinationPort,
        ]
        .into(),
        map: map.of(family).into(),
    }
}

fn addressed_to(family: Family, set: PerFamily) -> Statement {
    Statement::In {
        key: [Selector::Destination(family)].into(),
        set: set.of(family).into(),
    }
}

fn goto(chain: &str) -> Statement {
    Verdict::Goto(Arc::from(chain)).into()
}

fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule::new(statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masqueraded_connections_get_no_node_port() {
        assert_eq!(masquerade_ports(&(30_000..=32_767)), 32_768..=65_535);
        assert_eq!(masquerade_ports(&(40_000..=65_535)), 1024..=39_999);
        assert_eq!(masquerade_ports(&(60_000..=61_000)), 1024..=59_999);
        assert_eq!(masquerade_ports(&(1..=500)), 1024..=65_535);
        assert_eq!(masquerade_ports(&(1..=65_535)), 1024..=65_535);
    }
}
