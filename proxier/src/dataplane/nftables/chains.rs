//! The chains and sets that do not depend on any Service.

use nftables::{
    Chain, Hook, KeyType, Match, Reject, Rule, Selector, Set, SetKind, Statement, Table,
};

use super::names::*;
use super::parts;
use super::passing;
use super::pick::{PREPARED, Pick};
use super::slots::Draw;
use crate::cluster::model::{Family, Protocol};
use crate::dataplane::ipvs::filter::{FilterConfig, NodeFacts};
use crate::dataplane::packet_rules::*;

/// After connection tracking (-200), and before destination NAT.
const BEFORE_NAT: i32 = -110;
/// Before other programs' destination NAT (-100), which then skips the connection, and before the shield of the rules
/// beside IPVS (-101): while both tables exist, this one serves until IPVS is complete.
const NAT: i32 = -102;
/// After the kernel's destination NAT (-100), at which the NAT chains of all programs run.
const AFTER_NAT: i32 = -99;
/// After source NAT, where masquerading needs the bit.
const LEAVING: Hook = Hook::Postrouting(300);
/// After other programs' filters, for packets to processes of this node.
const ARRIVING: Hook = Hook::Input(101);

/// The most clients whose endpoints are remembered, for each family. A further client is served without affinity.
const MOST_LEARNED: u32 = 262_144;

/// Returns the table of a node without Services.
pub(super) fn skeleton(config: &FilterConfig, node: &NodeFacts) -> Table {
    let mut table = sets();
    let clients = LocalClients::on(config, node);
    let on_new = |chain| [rule([Match::New.into(), goto(chain)])];
    // A later packet of a connection without an answer is new, too. It would teach an endpoint that was forgotten, and
    // what IPVS of an earlier process serves would be refused.
    let on_first = |chain| {
        [rule([
            Match::New.into(),
            Match::Unconfirmed.into(),
            goto(chain),
        ])]
    };
    let dispatch = || [rule([goto(DISPATCH)])];
    for chain in [
        Chain::at(
            "before-prerouting",
            Hook::Prerouting(BEFORE_NAT),
            on_new(NEW),
        ),
        Chain::at("before-output", Hook::Output(BEFORE_NAT), on_new(NEW)),
        Chain::new(NEW, new()),
        Chain::at("nat-prerouting", Hook::NatPrerouting(NAT), dispatch()),
        Chain::at("nat-output", Hook::NatOutput(NAT), dispatch()),
        Chain::new(DISPATCH, dispatching(config)),
        Chain::at(
            "after-prerouting",
            Hook::Prerouting(AFTER_NAT),
            on_first(AFTER),
        ),
        Chain::at("after-output", Hook::Output(AFTER_NAT), on_first(AFTER)),
        Chain::new(AFTER, after()),
        Chain::new(TRANSLATED, translated(config)),
        Chain::at(
            "postrouting",
            SOURCE_NAT,
            postrouting(config, Some(Match::Translated)),
        ),
        Chain::at("leaving", LEAVING, [clear_bit(config.masquerade_bit)]),
        Chain::at("arriving", ARRIVING, arriving(config)),
        Chain::new(CLUSTER_IP, cluster_ip(config, node)),
        Chain::new(LOCAL_ONLY, local_only(&clients)),
        Chain::new(INSIDE_ELSEWHERE, clients.elsewhere.clone()),
        Chain::new(NOT_HERE, clients.not_here()),
        Chain::new(MASQUERADE, set_bit(config.masquerade_bit)),
        Chain::new(REFUSE, refuse()),
    ]
    .into_iter()
    .chain(passing::chains(config))
    {
        table.add_chain(chain);
    }
    for slots in 1..=PREPARED {
        let draw = Draw::Random;
        let first = 0;
        table.add_chain(Pick { draw, slots, first }.chain());
    }
    table
}

/// Returns a table with all sets, without elements and chains.
pub(super) fn sets() -> Table {
    let mut table = Table::default();
    for family in FAMILIES {
        parts::sets(family).for_each(|set| table.add_set(set));
        let address = KeyType::Address(family);
        table.add_set(counters(family));
        let client = [address, KeyType::Protocol, KeyType::Port, address];
        let size = MOST_LEARNED;
        let learned = SetKind::LearnedTargets { family, size };
        table.add_set(Set::new(AFFINITY.of(family), client, learned));
        for name in [SERVICE_ADDRESSES, CLUSTER_IPS, PINGABLE] {
            table.add_set(Set::new(name.of(family), [address], SetKind::Set));
        }
        let pair = [address, address];
        table.add_set(Set::new(HAIRPIN.of(family), pair, SetKind::Set));
    }
    let health_checks = Set::new(HEALTH_CHECK_PORTS, [KeyType::Port], SetKind::Set);
    table.add_set(health_checks);
    table
}

/// Returns the set of the frontends whose connections are counted, without elements.
///
/// Not counters of the elements of `frontends`: a change of an endpoint replaces these, and the count would begin again.
pub(super) fn counters(family: Family) -> Set {
    let frontend = [KeyType::Address(family), KeyType::Protocol, KeyType::Port];
    Set::new(COUNTED.of(family), frontend, SetKind::CountingSet)
}

/// Rejects clients, and decides whether others are masqueraded.
fn new() -> Vec<Rule> {
    let mut rules = Vec::new();
    for map in [GUARDED, LOCAL_FRONTENDS] {
        rules.extend(FAMILIES.map(|family| rule([frontend_map(family, map)])));
    }
    let external = FAMILIES.map(|family| {
        let to = within(frontend_key(family), EXTERNAL_FRONTENDS.of(family));
        rule([to, goto(MASQUERADE)])
    });
    rules.extend(external);
    let cluster_ip = FAMILIES.map(|it| rule([addressed_to(it, CLUSTER_IPS), goto(CLUSTER_IP)]));
    rules.extend(cluster_ip);
    rules
}

/// Sends a connection to the pick of its frontend. What no other machine can answer, this one does: health checks at
/// service addresses, and pings.
fn dispatching(config: &FilterConfig) -> Vec<Rule> {
    let mut rules = Vec::new();
    for family in FAMILIES {
        // Twice: before Linux 6.17, a lookup may miss an element that a transaction replaces.
        let dispatch = || rule([frontend_map(family, FRONTENDS)]);
        rules.extend([dispatch(), dispatch()]);
    }
    for family in FAMILIES {
        let to = addressed_to(family, SERVICE_ADDRESSES);
        let health_check = within([Selector::TcpDestinationPort], HEALTH_CHECK_PORTS);
        rules.push(rule([to, health_check, Statement::Redirect]));
        if config.answer_ping {
            let ping = Match::EchoRequest(family);
            let to = addressed_to(family, PINGABLE);
            rules.push(rule([ping.into(), to, Statement::Redirect]));
        }
    }
    rules
}

/// Learns endpoints, and rejects connections to cluster IPs that no frontend took.
fn after() -> Vec<Rule> {
    let translated = rule([Match::Translated.into(), goto(TRANSLATED)]);
    let refuse = FAMILIES.map(|it| rule([addressed_to(it, CLUSTER_IPS), goto(REFUSE)]));
    [translated].into_iter().chain(refuse).collect()
}

fn translated(config: &FilterConfig) -> Vec<Rule> {
    let sticky = FAMILIES.map(|family| rule([lookup(original_key(family), STICKY.of(family))]));
    // First, because the chain of a frontend with affinity does not return.
    let count = |family| rule([within(original_key(family), COUNTED.of(family))]);
    let counts = FAMILIES.into_iter().filter(|_| config.most_counted > 0);
    counts.map(count).chain(sticky).collect()
}

/// Masquerades connections to external frontends with policy Local from this node itself and from Pods of other
/// nodes, because the answer of an endpoint on a third node would not return through this one.
///
/// Clients outside keep their addresses.
fn local_only(clients: &LocalClients) -> Vec<Rule> {
    let own = rule([Match::SourceIsLocal.into(), goto(MASQUERADE)]);
    let pods = clients.perhaps_elsewhere();
    let pods = pods.map(|client| rule([client.clone().into(), goto(INSIDE_ELSEWHERE)]));
    [own].into_iter().chain(pods).collect()
}

fn arriving(config: &FilterConfig) -> Vec<Rule> {
    let bits = [Some(config.masquerade_bit), config.input_accept_bit];
    bits.into_iter().flatten().map(clear_bit).collect()
}

/// Rejects connections as the kernel answers at a port without a listener, so that clients do not wait.
fn refuse() -> Vec<Rule> {
    let tcp = Match::Protocol([Protocol::Tcp].into());
    vec![
        rule([tcp.into(), Statement::Reject(Reject::TcpReset)]),
        rule([Statement::Reject(Reject::PortUnreachable)]),
    ]
}

/// Returns the values of a translated packet that are the key of its frontend.
pub(super) fn original_key(family: Family) -> Box<[Selector]> {
    [
        Selector::OriginalDestination(family),
        Selector::Protocol,
        Selector::OriginalDestinationPort,
    ]
    .into()
}
