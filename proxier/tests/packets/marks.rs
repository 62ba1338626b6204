//! Marks that others give to packets are on them when they leave the node or reach a process of it,
//! whatever marks the program needs in between.

use std::collections::BTreeSet;

use proxier::filter::MasqueradeBit;
use proxier::plan::ServiceAddresses;

use super::scene::Scene;
use crate::{DUAL, at};

/// Every bit but those of two masquerade bits, 14 and 31; the lowest byte tells hosts from each other.
const MARK: u32 = 0x7fff_bf00;

/// Who sends packets, in both families.
const SENDERS: [(&str, &str); 7] = [
    ("172.18.0.2", "fd00:172:18::2"),
    ("203.0.113.9", "2001:db8:113::9"),
    ("10.244.1.2", "fd00:244:1::2"),
    ("10.244.1.3", "fd00:244:1::3"),
    ("10.244.1.4", "fd00:244:1::4"),
    ("10.244.2.2", "fd00:244:2::2"),
    ("172.18.0.3", "fd00:172:18::3"),
];

/// Services with an endpoint that is the node itself, under policy Local and under policy Cluster:
/// what processes of the node hear has not left it.
const HOST_NETWORK: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: host}
spec:
  type: LoadBalancer
  externalTrafficPolicy: POLICY
  clusterIP: 10.96.5.1
  clusterIPs: [10.96.5.1, "fd00:10:96::5:1"]
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: http, port: 80, targetPort: 8080, nodePort: 30085}
  - {name: dns, port: 53, targetPort: 5353, protocol: UDP, nodePort: 30056}
status:
  loadBalancer:
    ingress: [{ip: 198.51.100.7}, {ip: "2001:db8:51::7"}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: host-4, labels: {kubernetes.io/service-name: host}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}]
endpoints:
- {addresses: [172.18.0.2], nodeName: node-a}
- {addresses: [10.244.2.2], nodeName: node-b}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: host-6, labels: {kubernetes.io/service-name: host}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: dns, port: 5353, protocol: UDP}]
endpoints:
- {addresses: ["fd00:172:18::2"], nodeName: node-a}
- {addresses: ["fd00:244:2::2"], nodeName: node-b}
"#;

/// Clients and the addresses that they ask: masqueraded, by firewall mark, and plain.
const ASKED: [(&str, [&str; 2], [u16; 2]); 11] = [
    // Masqueraded, at a cluster IP, from outside; plain, from inside; of the node; to itself.
    ("ext", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    ("pod3", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    ("node", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    ("pod1", ["10.96.1.1", "fd00:10:96::1"], [80, 53]),
    // Masqueraded, at a load balancer's address and at a node port.
    ("ext", ["198.51.100.2", "2001:db8:51::2"], [80, 53]),
    ("pod3", ["172.18.0.2", "fd00:172:18::2"], [30080, 30053]),
    // Under policy Local: plain from outside, by firewall mark from inside and of the node.
    ("ext", ["198.51.100.4", "2001:db8:51::4"], [80, 53]),
    ("pod3", ["198.51.100.4", "2001:db8:51::4"], [80, 53]),
    ("node", ["198.51.100.4", "2001:db8:51::4"], [80, 53]),
    // To a process of the node, from inside by firewall mark where the policy is Local.
    ("pod3", ["198.51.100.7", "2001:db8:51::7"], [80, 53]),
    // No Service's.
    ("pod3", ["10.244.2.2", "fd00:244:2::2"], [8080, 5353]),
];

/// The mark that a stranger gives to packets of `sender`, if it gives any.
fn mark_of(sender: &str) -> u32 {
    let is_it = |(v4, v6): &(&str, &str)| *v4 == sender || *v6 == sender;
    let place = SENDERS.iter().position(is_it);
    let place = place.unwrap_or_else(|| panic!("{sender} sends nothing"));
    MARK | u32::try_from(place + 1).unwrap()
}

/// A table that notes the marks that packets have after everything that is ours. A packet's sender
/// is what connection tracking says it was at first, whatever its source has become.
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

/// A table that marks packets before anything that is ours: what arrives, what a client on the node
/// says to a local address, and what a server on it answers. IPVS sends packets out as if they were
/// the node's, but to nobody local and from clients' ports; these it leaves alone.
fn stranger() -> String {
    let by_sender = |family: fn(&(&'static str, &'static str)) -> &'static str| {
        let mark = |address| format!("{address} : {:#x}", mark_of(address));
        // The node's own come back by `lo`, and have theirs already.
        let marks: Vec<String> = SENDERS[1..].iter().map(family).map(mark).collect();
        marks.join(", ")
    };
    let (v4, v6) = (by_sender(|it| it.0), by_sender(|it| it.1));
    let node = mark_of("172.18.0.2");
    format!(
        "table inet stranger {{
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

/// What the observer noted in a set: who sent it, to which service address it belongs, the protocol,
/// and the mark.
type Noted = BTreeSet<(String, String, String, u32)>;

fn noted(scene: &Scene, set: &str) -> Noted {
    let mut noted = Noted::new();
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
            noted.insert((sender.into(), service.into(), protocol.into(), mark));
        }
    }
    noted
}

/// Asks everything, and compares the marks of all packets with those that they had from a stranger,
/// or with none.
fn marks_stay(policy: &str, bit: MasqueradeBit, has_stranger: bool) {
    let manifests = format!("{DUAL}{}", HOST_NETWORK.replace("POLICY", policy));
    let scene = Scene::with(&manifests, ServiceAddresses::Routes, |config| {
        config.masquerade_bit = bit;
    });
    scene.client("node").serve_tcp(8080);
    scene.client("node").serve_udp(5353);
    scene.nft(&observer());
    if has_stranger {
        scene.nft(&stranger());
    }
    let mut expected = BTreeSet::new();
    for (client, addresses, [tcp, udp]) in ASKED {
        let [v4, v6] = addresses;
        for frontend in at(v4, v6, tcp, udp) {
            // Endpoints take turns: both of them.
            for answer in scene.ask(client, &frontend, 2) {
                assert!(answer.contains('/'), "{client} to {frontend}: {answer}");
            }
        }
        for address in addresses {
            for protocol in ["tcp", "udp"] {
                expected.insert((address.to_owned(), protocol.to_owned()));
            }
        }
    }

    let mark = |sender: &str| if has_stranger { mark_of(sender) } else { 0 };
    for (set, is_everything) in [
        ("leaving-original", true),
        ("leaving-reply", true),
        ("delivered-original", false),
        ("delivered-reply", false),
    ] {
        let noted = noted(&scene, set);
        let wrong: Vec<_> = noted
            .iter()
            .filter(|(sender, _, _, found)| *found != mark(sender))
            .map(|it| format!("{it:x?}"))
            .collect();
        assert!(wrong.is_empty(), "{set}: {}", wrong.join("\n"));
        let to: BTreeSet<_> = noted
            .iter()
            .map(|(_, service, protocol, _)| (service.clone(), protocol.clone()))
            .collect();
        if is_everything {
            assert_eq!(to, expected, "{set}");
        } else {
            assert!(!to.is_empty(), "{set}");
        }
    }
    let delivered = noted(&scene, "delivered-original");
    let to_host = |(_, service, _, _): &&(String, String, String, u32)| service.ends_with('7');
    assert_eq!(delivered.iter().filter(to_host).count(), 4, "{delivered:?}");
}

#[test]
fn marks_of_strangers_stay() {
    lab::test(|| marks_stay("Local", MasqueradeBit::default(), true));
}

#[test]
fn marks_of_strangers_stay_with_another_masquerade_bit() {
    lab::test(|| marks_stay("Cluster", MasqueradeBit::new(31).unwrap(), true));
}

#[test]
fn packets_without_a_mark_have_none_in_the_end() {
    lab::test(|| marks_stay("Local", MasqueradeBit::default(), false));
}

#[test]
fn packets_without_a_mark_have_none_behind_another_masquerade_bit() {
    lab::test(|| marks_stay("Cluster", MasqueradeBit::new(31).unwrap(), false));
}
