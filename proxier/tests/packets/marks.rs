//! Packets keep the marks of other programs.
//!
//! Our rules use marks too. But a packet has the other program's mark when it leaves the node or reaches a
//! process of the node.

use std::collections::BTreeSet;

use proxier::testing::filter::MarkBit;
use proxier::testing::model::TrafficPolicy;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::{Endpoint, POD_B1, Service, Services};
use crate::at;

/// The other program's mark: all bits except the masquerade bits of these tests, 14 and 31. The lowest
/// byte has the number of the sender.
const MARK: u32 = 0x7fff_bf00;

/// The addresses of the hosts that send packets.
const SENDERS: [(&str, &str); 7] = [
    ("172.18.0.2", "fd00:172:18::2"),
    ("203.0.113.9", "2001:db8:113::9"),
    ("10.244.1.2", "fd00:244:1::2"),
    ("10.244.1.3", "fd00:244:1::3"),
    ("10.244.1.4", "fd00:244:1::4"),
    ("10.244.2.2", "fd00:244:2::2"),
    ("172.18.0.3", "fd00:172:18::3"),
];

/// Returns a Service with the node itself as an endpoint. Packets to this endpoint do not leave the node.
fn with_host_network(policy: TrafficPolicy) -> Service {
    const NODE: Endpoint = Endpoint::new("172.18.0.2", "fd00:172:18::2", "node-a");
    Service::new("host", ["10.96.5.1", "fd00:10:96::5:1"])
        .external_policy(policy)
        .load_balancer(["198.51.100.7", "2001:db8:51::7"])
        .node_ports([30085, 30056])
        .endpoints(&[NODE, POD_B1])
}

/// Clients, the addresses that they ask, and the TCP and the UDP port. *Plain* is without masquerade.
const ASKED: [(&str, [&str; 2], [u16; 2]); 11] = [
    // A cluster IP: masqueraded for ext outside; plain for pod3 inside, the node, and the endpoint pod1.
    ("ext", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    ("pod3", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    ("node", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    ("pod1", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    // A load-balancer IP and a node port: masqueraded.
    ("ext", ["198.51.100.2", "2001:db8:51::2"], [80, 53]),
    ("pod3", ["172.18.0.2", "fd00:172:18::2"], [30080, 30053]),
    // Policy Local: plain for ext outside; by firewall mark for pod3 inside and the node.
    ("ext", ["198.51.100.4", "2001:db8:51::4"], [80, 53]),
    ("pod3", ["198.51.100.4", "2001:db8:51::4"], [80, 53]),
    ("node", ["198.51.100.4", "2001:db8:51::4"], [80, 53]),
    // A process of the node as endpoint: by firewall mark if the policy is Local.
    ("pod3", ["198.51.100.7", "2001:db8:51::7"], [80, 53]),
    // An endpoint itself, without a Service.
    ("pod3", ["10.244.2.2", "fd00:244:2::2"], [8080, 5353]),
];

/// Returns the mark that the other program gives to packets of `sender`.
fn mark_of(sender: &str) -> u32 {
    let is_sender = |(v4, v6): &(&str, &str)| *v4 == sender || *v6 == sender;
    let index = SENDERS.iter().position(is_sender);
    let index = index.unwrap_or_else(|| panic!("{sender} is no sender"));
    MARK | u32::try_from(index + 1).unwrap()
}

/// Returns a table that notes the marks of packets after all our chains.
///
/// It takes a packet's sender from connection tracking, because masquerade may have changed the source.
fn observer() -> String {
    let mut sets = String::new();
    let mut rules = [("leaving", String::new()), ("delivered", String::new())];
    for (ip, address) in [("ip", "ipv4_addr"), ("ip6", "ipv6_addr")] {
        for (chain, rules) in &mut rules {
            for direction in ["original", "reply"] {
                let set = format!("{chain}-{direction}-{ip}");
                sets += &format!(
                    "set {set} {{
                        type {address} . {address} . inet_proto . mark
                        flags dynamic
                        size 1000
                    }}\n"
                );
                *rules += &format!(
                    "meta l4proto {{ tcp, udp }} ct direction {direction} add @{set} {{ \
                        ct {direction} {ip} saddr . ct original {ip} daddr . meta l4proto . meta mark \
                    }}\n"
                );
            }
        }
    }
    let [(_, leaving), (_, delivered)] = rules;
    format!(
        "table inet observer {{
            {sets}
            chain leaving {{
                type filter hook postrouting priority 400
                oifname != \"lo\" jump note-leaving
            }}
            chain note-leaving {{ {leaving} }}
            chain delivered {{
                type filter hook input priority 400
                iifname != \"lo\" jump note-delivered
            }}
            chain note-delivered {{ {delivered} }}
        }}"
    )
}

/// Returns another program's table, which marks packets before all our chains.
///
/// It marks packets that arrive, packets of the node to local addresses, and answers of servers on the
/// node. It does not mark the requests that IPVS sends through the output hook: these have remote
/// destinations and clients' source ports.
fn marking_table() -> String {
    let by_sender = |family: fn(&(&'static str, &'static str)) -> &'static str| {
        let mark = |address| format!("{address} : {:#x}", mark_of(address));
        // Packets of the node itself arrive through `lo` with their mark.
        let marks: Vec<String> = SENDERS[1..].iter().map(family).map(mark).collect();
        marks.join(", ")
    };
    let (v4, v6) = (by_sender(|it| it.0), by_sender(|it| it.1));
    let node = mark_of("172.18.0.2");
    format!(
        "table inet marking {{
            chain arriving {{
                type filter hook prerouting priority -301
                meta mark set ip saddr map {{ {v4} }}
                meta mark set ip6 saddr map {{ {v6} }}
            }}
            chain own {{
                type filter hook output priority -301
                fib daddr type local meta mark set {node:#x}
                th sport {{ 8080, 5353 }} meta mark set {node:#x}
            }}
        }}"
    )
}

/// A packet that the observer noted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Noted {
    sender: String,
    /// The address that the client asked.
    service: String,
    protocol: String,
    mark: u32,
}

/// Returns the packets that the observer noted in `set`, in both families.
fn noted(scene: &Scene, set: &str) -> BTreeSet<Noted> {
    let mut noted = BTreeSet::new();
    for family in ["ip", "ip6"] {
        let set = format!("{set}-{family}");
        let list = ["/usr/sbin/nft", "list", "set", "inet", "observer", &set];
        let listed = scene.client("node").exec(&list);
        let Some((_, elements)) = listed.split_once("elements = {") else {
            continue;
        };
        for element in elements.split('}').next().unwrap().split(',') {
            let fields: Vec<&str> = element.trim().split(" . ").collect();
            let [sender, service, protocol, mark] = fields[..] else {
                panic!("{element}");
            };
            let mark = u32::from_str_radix(mark.trim_start_matches("0x"), 16).unwrap();
            noted.insert(Noted {
                sender: sender.into(),
                service: service.into(),
                protocol: protocol.into(),
                mark,
            });
        }
    }
    noted
}

/// The marks that packets have before they reach our rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    OfAnotherProgram,
    None,
}

/// Asserts that the packets of all questions in [`ASKED`] leave our rules with the marks that they had.
fn marks_stay(before: Marks, policy: TrafficPolicy, bit: MarkBit) {
    let services = Services::dual().with(with_host_network(policy));
    let scene = Scene::with(services, ServiceAddresses::Routes, |config| {
        config.masquerade_bit = bit;
    });
    scene.client("node").serve_tcp(8080);
    scene.client("node").serve_udp(5353);
    scene.nft(&observer());
    if before == Marks::OfAnotherProgram {
        scene.nft(&marking_table());
    }
    let mut all_asked = BTreeSet::new();
    for (client, addresses, [tcp, udp]) in ASKED {
        let [v4, v6] = addresses;
        for frontend in at(v4, v6, tcp, udp) {
            // Endpoints take turns, so two requests reach both.
            for answer in scene.ask(client, &frontend, 2) {
                assert!(answer.contains('/'), "{client} to {frontend}: {answer}");
            }
        }
        for address in addresses {
            all_asked.insert((address.to_owned(), "tcp".to_owned()));
            all_asked.insert((address.to_owned(), "udp".to_owned()));
        }
    }

    // Returns the services and protocols of the packets in `set`, after a look at their marks.
    let noted_in = |set: &str| -> BTreeSet<(String, String)> {
        let noted = noted(&scene, set);
        let expected = |sender: &str| match before {
            Marks::OfAnotherProgram => mark_of(sender),
            Marks::None => 0,
        };
        let is_wrong = |it: &&Noted| it.mark != expected(&it.sender);
        let wrong = noted.iter().filter(is_wrong).map(|it| format!("{it:x?}"));
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{set}: {}", wrong.join("\n"));
        let packets = noted.into_iter();
        packets.map(|it| (it.service, it.protocol)).collect()
    };
    assert_eq!(noted_in("leaving-original"), all_asked);
    assert_eq!(noted_in("leaving-reply"), all_asked);
    assert!(!noted_in("delivered-original").is_empty());
    assert!(!noted_in("delivered-reply").is_empty());
    // TCP and UDP packets in both families reached the node's own servers.
    let delivered = noted(&scene, "delivered-original");
    let to_host = delivered.iter().filter(|it| it.service.ends_with('7'));
    assert_eq!(to_host.count(), 4, "{delivered:?}");
}

#[test]
fn marks_of_another_program_stay() {
    let bit = MarkBit::MASQUERADE;
    lab::test(|| marks_stay(Marks::OfAnotherProgram, TrafficPolicy::Local, bit));
}

#[test]
fn marks_of_another_program_stay_with_masquerade_bit_31() {
    let bit = MarkBit::new(31).unwrap();
    lab::test(|| marks_stay(Marks::OfAnotherProgram, TrafficPolicy::Cluster, bit));
}

#[test]
fn unmarked_packets_leave_our_rules_unmarked() {
    let bit = MarkBit::MASQUERADE;
    lab::test(|| marks_stay(Marks::None, TrafficPolicy::Local, bit));
}

#[test]
fn unmarked_packets_leave_our_rules_unmarked_with_masquerade_bit_31() {
    let bit = MarkBit::new(31).unwrap();
    lab::test(|| marks_stay(Marks::None, TrafficPolicy::Cluster, bit));
}
