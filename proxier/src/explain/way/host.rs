//! Steps about what else on the host affects packets: routes, settings, chains of other programs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Asked;
use super::finding::{
    ANSWERS_ARP, FOREIGN_CHAIN, FOREIGN_NAT, NO_ROUTE, PORT_CLASH, REVERSE_PATH, SETTING,
};
use super::step::{Outcome, Seen, Step};
use crate::host::foreign_chains::{ForeignHook, Taking};
use crate::host::way::{Drop, HostWay};

/// Strict filtering (RFC 3704), as `rp_filter` has it.
const STRICT: u64 = 1;

/// Returns the steps about packets that reach an endpoint. `here` has the endpoints on this node.
pub(crate) fn steps(asked: &Asked, way: &HostWay, here: &BTreeSet<IpAddr>) -> Vec<Step> {
    let mut steps = Vec::new();
    let packet = &asked.packet;
    let client = packet.source.ip();
    for (name, value) in &way.wrong_settings {
        let name = name.replace('/', ".");
        let hidden = asked.passed.endpoints.iter().filter(|it| it.masqueraded);
        let mut elsewhere = hidden.filter(|it| !here.contains(&it.address.ip()));
        let (effect, outcome) = match &*name {
            "net.ipv4.vs.conntrack" if elsewhere.next().is_some() => (
                "connections through IPVS are not masqueraded, so answers of other nodes may miss this one",
                Outcome::Unknown,
            ),
            "net.ipv4.vs.conntrack" => (
                "connections through IPVS are not masqueraded",
                Outcome::Answered,
            ),
            "net.ipv4.vs.expire_nodest_conn" => (
                "packets of open connections and flows to a removed endpoint vanish",
                Outcome::Answered,
            ),
            _ => (
                "the answers of endpoints are not forwarded",
                Outcome::Dropped,
            ),
        };
        let step = Step::new(
            format!("{name} is {value}: {effect}"),
            format!("{name} must be 1"),
            Seen::Kernel,
        );
        steps.push(step.finding(&SETTING, outcome, format!("sysctl -w {name}=1")));
    }
    if way.answers_arp {
        let address = asked.frontend.address;
        let what = format!(
            "this node answers ARP requests for {address} on {}, as each node that serves it",
            packet.input
        );
        let because =
            "the address is local, in a network of that link, arp_ignore is 0, and --arp is off";
        let step = Step::new(what, because, Seen::Kernel);
        let next =
            format!("arping -I DEVICE {address}, from a host of the link: one node must answer");
        steps.push(step.finding(&ANSWERS_ARP, Outcome::Answered, next));
    }
    if let Some(range) = &way.clashing_ports {
        let port = asked.frontend.port;
        let what = format!(
            "the kernel may give port {port} to a connection of a process of this node, whose answer IPVS takes"
        );
        let because = format!(
            "net.ipv4.ip_local_port_range is {range}, and ip_local_reserved_ports lacks {port}"
        );
        let step = Step::new(what, because, Seen::Kernel);
        let next = "sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767";
        steps.push(step.finding(&PORT_CLASH, Outcome::Answered, next));
    }
    for taking in &way.translations {
        let verb = if taking.is_certain {
            "sends"
        } else {
            "may send"
        };
        let what = format!(
            "{} {verb} the client's packets to another destination",
            taking.by
        );
        let because = "NAT rules of other programs come before node ports, as with kube-proxy";
        let step = Step::new(what, because, Seen::Kernel);
        let next = format!("nft --handle list {}", taking.chain.listed());
        steps.push(step.finding(&FOREIGN_NAT, Outcome::Unknown, next));
    }
    steps.extend(chains(way, ForeignHook::Input, false));
    for (endpoint, route) in &way.to_endpoints {
        let Some(route) = route else {
            let step = Step::new(
                format!("this node has no route to endpoint {endpoint}"),
                "`ip route get` fails",
                Seen::Kernel,
            );
            let is_only = way.to_endpoints.values().all(Option::is_none);
            let outcome = if is_only {
                Outcome::Dropped
            } else {
                Outcome::Answered
            };
            steps.push(step.finding(&NO_ROUTE, outcome, format!("ip route get {endpoint}")));
            continue;
        };
        let what = format!(
            "packets to {endpoint} leave by {} with MTU {}",
            route.device, route.mtu
        );
        steps.push(Step::new(what, "the node's routes", Seen::Kernel));
    }
    for (hook, are_answers) in [
        (ForeignHook::Output, false),
        (ForeignHook::Forward, false),
        (ForeignHook::Forward, true),
        (ForeignHook::Input, true),
    ] {
        steps.extend(chains(way, hook, are_answers));
    }
    match &way.to_client {
        None => {}
        Some(None) => {
            let step = Step::new(
                format!("this node has no route back to {client}"),
                "`ip route get` fails",
                Seen::Kernel,
            );
            steps.push(step.finding(
                &NO_ROUTE,
                Outcome::Dropped,
                format!("ip route get {client}"),
            ));
        }
        Some(Some(route)) if route.device != *packet.input && way.reverse_filter == STRICT => {
            let step = Step::new(
                format!(
                    "{} drops packets from {client}: the route to it is by {}",
                    packet.input, route.device
                ),
                format!(
                    "net.ipv4.conf.{}.rp_filter (or that of all) is 1, strict",
                    packet.input
                ),
                Seen::Kernel,
            );
            let next = format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", packet.input);
            steps.push(step.finding(&REVERSE_PATH, Outcome::Dropped, next));
        }
        Some(Some(route)) => {
            let what = format!(
                "answers to {client} leave by {} with MTU {}",
                route.device, route.mtu
            );
            steps.push(Step::new(what, "the node's routes", Seen::Kernel));
        }
    }
    steps
}

/// Returns the steps about the chains of other programs at a hook.
fn chains(way: &HostWay, hook: ForeignHook, are_answers: bool) -> Vec<Step> {
    let is_here = |drop: &&Drop| drop.hook == hook && drop.are_answers == are_answers;
    let step = |drop: &Drop| {
        let Taking {
            chain,
            by,
            is_certain,
        } = &drop.taking;
        let verb = if *is_certain { "drops" } else { "may drop" };
        let packets = match (are_answers, hook) {
            (true, _) => "the answers of endpoints",
            (false, ForeignHook::Input) => "the client's packets",
            (false, _) => "packets to endpoints",
        };
        let some = match drop.is_for_all {
            true => String::new(),
            false => format!(" ({} of them)", drop.endpoints),
        };
        let outcome = match (*is_certain, drop.is_for_all) {
            (true, true) => Outcome::Dropped,
            (true, false) => Outcome::Answered,
            (false, _) => Outcome::Unknown,
        };
        let what = format!("{by} {verb} {packets}{some} at the hook {hook}");
        let step = Step::new(what, "a drop in any table is final", Seen::Kernel);
        step.finding(
            &FOREIGN_CHAIN,
            outcome,
            format!("nft --handle list {}", chain.listed()),
        )
    };
    way.drops.iter().filter(is_here).map(step).collect()
}
