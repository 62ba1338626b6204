//! Frontends of a Service with policy Local: which endpoints each client reaches, and which source they see,
//! whatever else the Service, the node and other programs have.
//!
//! The Service `local` has the endpoints pod2 on this node and podB1 on the node `peer`. Clients inside the cluster
//! reach both, clients outside only pod2. An answer of podB1 to podB2 would not pass this node, so podB1 sees this
//! node's address then.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use lab::net::ask_tcp;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::filter::{LocalMode, TABLE};
use proxier::testing::model::TrafficPolicy;
use proxier::testing::plan::ServiceAddresses;

use super::host_ports;
use super::scene::{Answers, Clients, Scene, Subject, with_each_dataplane};
use super::services::{POD_B1, POD2, Port, Service, Services};
use crate::{at, check};

/// The answers that a client gets.
pub(super) type Row = (&'static str, &'static [&'static str]);

/// A Pod here, a Pod elsewhere, a process of this node, a process with hostNetwork elsewhere, a client outside.
pub(super) const PLAIN: [Row; 5] = [
    ("pod3", &["pod2/client", "podB1/client"]),
    ("podB2", &["pod2/client", "podB1/node"]),
    ("node", &["pod2/node", "podB1/node"]),
    ("peer", &["pod2/client"]),
    ("ext", &["pod2/client"]),
];

/// Clients inside get what clients outside get: without a firewall mark.
const UNMARKED: [Row; 5] = [
    ("pod3", &["pod2/client"]),
    ("podB2", &["pod2/client"]),
    ("node", &["pod2/node"]),
    ("peer", &["pod2/client"]),
    ("ext", &["pod2/client"]),
];

/// The same if the map of saved marks is full: a packet that has a mark gets none of ours. One of podB2 has the
/// masquerade bit by then.
const FULL_MAP: [Row; 5] = [
    ("pod3", &["pod2/client"]),
    ("podB2", &["pod2/node"]),
    ("node", &["pod2/node"]),
    ("peer", &["pod2/client"]),
    ("ext", &["pod2/client"]),
];

/// As [`PLAIN`] at an address that an interface of this node and one of `peer` have.
const ON_INTERFACE: [Row; 5] = [
    ("pod3", &["pod2/client", "podB1/client"]),
    ("podB2", &["pod2/client", "podB1/node"]),
    ("node", &["pod2/vip", "podB1/node"]),
    ("peer", &["pod2/client"]),
    ("ext", &["pod2/client"]),
];

/// What source ranges with the addresses of pod3, ext and podB2 leave of [`PLAIN`].
const RANGED: [Row; 5] = [
    ("pod3", &["pod2/client", "podB1/client"]),
    ("podB2", &["pod2/client", "podB1/node"]),
    ("peer", &["timeout"]),
    ("ext", &["pod2/client"]),
    ("ext2", &["timeout"]),
];

/// The clients that a hostPort of pod3 does not concern, because pod3 is its endpoint.
const OTHERS: [Row; 4] = [PLAIN[1], PLAIN[2], PLAIN[3], PLAIN[4]];

fn external_ip() -> [String; 4] {
    at("198.51.100.3", "2001:db8:51::3", 80, 53)
}

pub(super) fn load_balancer() -> [String; 4] {
    at("198.51.100.4", "2001:db8:51::4", 80, 53)
}

pub(super) fn node_port() -> [String; 4] {
    at("172.18.0.2", "fd00:172:18::2", 30081, 30054)
}

#[track_caller]
pub(super) fn check_rows(scene: &Scene, frontends: &[String], rows: &[Row]) {
    for (client, expected) in rows {
        check(scene, client, frontends, expected);
    }
}

#[track_caller]
fn check_all(scene: &Scene, rows: &[Row]) {
    for frontends in [external_ip(), load_balancer(), node_port()] {
        check_rows(scene, &frontends, rows);
    }
}

#[test]
fn each_client_of_policy_local_reaches_the_right_endpoints() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        check_all(&scene, &PLAIN);
        scene.restart();
        scene.program(Services::dual());
        check_all(&scene, &PLAIN);
    });
}

#[test]
fn both_policies_local_differ_at_the_cluster_ip_only() {
    lab::test(|| {
        let services = Services::dual().edit("local", |local| {
            local.internal_policy = TrafficPolicy::Local;
        });
        let scene = Scene::new(services);
        check_all(&scene, &PLAIN);
        let cluster_ip = at("10.96.2.1", "fd00:10:96::2:1", 80, 53);
        check(&scene, "pod3", &cluster_ip, &["pod2/client"]);
        check(&scene, "node", &cluster_ip, &["pod2/node"]);
    });
}

#[test]
fn with_affinity_each_client_of_policy_local_stays_at_one_of_the_right_endpoints() {
    lab::test(|| {
        let services = Services::dual().edit("local", |local| local.has_affinity = true);
        let scene = Scene::new(services);
        for frontends in [external_ip(), load_balancer(), node_port()] {
            for frontend in frontends {
                for (client, expected) in PLAIN {
                    let answers = scene.ask(client, &frontend, 8);
                    let is_right = |answer: &String| expected.contains(&answer.as_str());
                    assert!(
                        answers.len() == 1 && answers.iter().all(is_right),
                        "{client} to {frontend}: {answers:?}"
                    );
                }
            }
        }
    });
}

#[test]
fn source_ranges_of_policy_local_admit_clients_inside_and_outside() {
    lab::test(|| {
        let services = Services::dual().edit("local", |local| {
            local.source_ranges = ["10.244.1.4/32", "10.244.2.3/32", "203.0.113.0/24"]
                .into_iter()
                .chain([
                    "fd00:244:1::4/128",
                    "fd00:244:2::3/128",
                    "2001:db8:113::/48",
                ])
                .map(String::from)
                .collect();
        });
        let scene = Scene::new(services);
        check_rows(&scene, &load_balancer()[..], &RANGED);
        check_rows(&scene, &external_ip(), &PLAIN);
        check_rows(&scene, &node_port(), &PLAIN);
    });
}

#[test]
fn an_address_on_an_interface_reaches_the_right_endpoints() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        // As kube-vip and keepalived add it; the endpoint's node has it as a service address.
        for address in ["198.51.100.4/32", "2001:db8:51::4/128"] {
            for (host, device) in [("node", "ext0"), ("peer", "lo")] {
                let add = ["ip", "address", "add", address, "dev", device, "nodad"];
                let add = if address.contains(':') {
                    &add[..]
                } else {
                    &add[..6]
                };
                scene.client(host).exec(add);
            }
        }
        scene.restart();
        scene.program(Services::dual());
        // `peer` has the address itself.
        check_rows(&scene, &load_balancer(), &ON_INTERFACE[..1]);
        check_rows(&scene, &load_balancer(), &ON_INTERFACE[2..3]);
        check_rows(&scene, &load_balancer(), &ON_INTERFACE[4..]);
        check_rows(&scene, &external_ip(), &PLAIN);
        check_rows(&scene, &node_port(), &PLAIN);
    });
}

#[test]
fn each_address_of_the_node_serves_node_ports_of_policy_local() {
    lab::test(|| {
        let scene = Scene::new(Services::dual());
        for (v4, v6) in [
            ("203.0.113.1", "2001:db8:113::1"),
            ("192.0.2.1", "2001:db8:2::1"),
        ] {
            check_rows(&scene, &at(v4, v6, 30081, 30054), &PLAIN);
        }
    });
}

/// The endpoint's node need not have a route to the network of another link.
#[test]
fn the_nodes_own_connections_to_each_of_its_addresses_have_the_source_of_their_way() {
    lab::test(|| check_own_sources(Scene::new(Services::dual()).clients()));
}

/// Asserts that podB1 sees the node's address on the link to it, when a process of the node asks at other addresses of
/// the node.
#[track_caller]
pub(super) fn check_own_sources(clients: Clients<'_>) {
    for (frontend, expected) in [
        ("203.0.113.1:30081", "172.18.0.2"),
        ("192.0.2.1:30081", "172.18.0.2"),
        ("[2001:db8:113::1]:30081", "fd00:172:18::2"),
        ("[2001:db8:2::1]:30081", "fd00:172:18::2"),
    ] {
        let to: SocketAddr = frontend.parse().unwrap();
        let seen: BTreeSet<String> = clients.host("node").run(|| {
            let answers = (0..24).map(|_| ask_tcp(to));
            let answers = answers.filter(|answer| answer.backend() == Some("podB1"));
            let sources = answers.filter_map(|answer| answer.source());
            sources.map(|source| source.to_string()).collect()
        });
        assert_eq!(seen, BTreeSet::from([expected.to_owned()]), "{frontend}");
    }
}

/// Every mark of one bit, except the masquerade bit, and the mark of all other bits.
#[test]
fn marks_of_other_programs_change_no_endpoint() {
    lab::test(|| {
        let scene = Scene::new(Services::dual());
        let bits = (0..32).filter(|bit| *bit != 14).map(|bit| 1_u32 << bit);
        let marks = bits.chain([!(1 << 14)]);
        let marks: Vec<String> = marks
            .enumerate()
            .map(|(index, mark)| format!("{index} : {mark:#x}"))
            .collect();
        scene.nft(&marking(&format!(
            "numgen inc mod {} map {{ {} }}",
            marks.len(),
            marks.join(", ")
        )));
        check_all(&scene, &PLAIN);
    });
}

/// A program marks packets with a mark of ours. It does not lead to our virtual server.
#[test]
fn a_mark_of_ours_means_nothing_on_packets_that_arrive() {
    lab::test(|| {
        let scene = Scene::new(Services::dual());
        let listed = scene.client("node").exec(&[
            "/usr/sbin/nft",
            "list",
            "set",
            "inet",
            TABLE,
            "inside-marks",
        ]);
        let (_, marks) = listed.split_once("elements = {").unwrap();
        let marks: Vec<&str> = marks
            .split(['}', ','])
            .map(str::trim)
            .filter(|it| it.starts_with("0x"))
            .collect();
        assert_eq!(marks.len(), 4, "{listed}");
        for mark in marks {
            scene.nft(&marking(mark));
            check_all(&scene, &PLAIN);
            let web = at("10.96.1.1", "fd00:10:96::1", 80, 53);
            check(&scene, "pod3", &web, &["pod1/client", "podB1/client"]);
            check(&scene, "node", &web, &["pod1/node", "podB1/node"]);
            let ssh = [
                "tcp 172.18.0.2:22".to_owned(),
                "tcp [fd00:172:18::2]:22".to_owned(),
            ];
            check(&scene, "ext", &ssh, &["HOST/client"]);
            scene.nft("delete table inet marking");
        }
    });
}

/// Returns the table of a program that marks all packets that arrive, and those of the node to addresses of the
/// node, before our chains.
pub(super) fn marking(mark: &str) -> String {
    format!(
        "table inet marking {{
            chain arriving {{
                type filter hook prerouting priority -301
                meta mark set {mark}
            }}
            chain own {{
                type filter hook output priority -301
                fib daddr type local meta mark set {mark}
            }}
        }}"
    )
}

#[test]
fn a_full_map_of_marks_fails_closed() {
    lab::test(|| {
        let scene = Scene::new(Services::dual());
        fill_map(&scene);
        // Only packets with a mark need an element.
        check_all(
            &scene,
            &[PLAIN[0], FULL_MAP[1], PLAIN[2], PLAIN[3], PLAIN[4]],
        );
        scene.nft(&marking("0x00100000"));
        check_all(&scene, &FULL_MAP);
    });
}

/// Fills the map of saved marks, as the connections of a Pod would.
pub(super) fn fill_map(scene: &Scene) {
    let mut elements = String::new();
    for connection in 1..=65_536_u32 {
        // Connections have numbers at random, so that none of these meets a real one.
        writeln!(elements, "{connection:#x} : 0x1,").unwrap();
    }
    scene.nft(&format!(
        "add element inet {TABLE} marks-before {{ {elements} }}"
    ));
}

#[test]
fn without_our_table_clients_inside_reach_the_endpoints_of_this_node_and_then_all_again() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        scene.nft(&format!("delete table inet {TABLE}"));
        check_all(&scene, &UNMARKED);
        scene.proxier.dataplane_mut().distrust_rules();
        scene.program(Services::dual());
        check_all(&scene, &PLAIN);
    });
}

#[test]
fn a_full_connection_tracking_opens_nothing() {
    lab::test(|| {
        let ranged = Services::dual().edit("local", |local| {
            local.source_ranges = vec![
                "203.0.113.9/32".to_owned(),
                "2001:db8:113::9/128".to_owned(),
            ];
        });
        let scene = Scene::new(ranged);
        check(&scene, "ext", &load_balancer(), &["pod2/client"]);
        fill_connection_tracking(&scene);
        let clients = ["ext", "ext2", "pod3", "podB2", "peer"];
        let asked: Vec<_> = clients
            .iter()
            .flat_map(|client| load_balancer().map(|to| (*client, to)))
            .collect();
        let asked: Vec<_> = asked
            .iter()
            .map(|(client, to)| (*client, to.as_str()))
            .collect();
        let none = Answers::from(["timeout".to_owned()]);
        for (question, answers) in asked.iter().zip(scene.ask_at_once(&asked)) {
            assert_eq!(answers, none, "{question:?}");
        }
        let flush = ["/usr/sbin/conntrack", "-D", "-d", "10.9.0.2"];
        scene.client("node").exec(&flush);
        check(&scene, "ext", &load_balancer(), &["pod2/client"]);
    });
}

/// Makes the kernel's table of connections one full of connections to 10.9.0.2 that it keeps. Any other would end while
/// the test asks, and leave room.
fn fill_connection_tracking(scene: &Scene) {
    scene.client("node").exec(&["/usr/sbin/conntrack", "-F"]);
    let max = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let max: u32 = max.trim().parse().unwrap();
    let mut connections = String::new();
    for number in 0..=max {
        let (port, host) = (1 + number % 50_000, number / 50_000);
        let tuple = format!("-s 10.9.1.{host} -d 10.9.0.2 -p udp --sport {port} --dport 9");
        writeln!(connections, "-I {tuple} -t 600 -u ASSURED,SEEN_REPLY").unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), connections).unwrap();
    let path = file.path().to_str().unwrap();
    scene.client("node").run(|| {
        // It fails at the connection that the full table refuses.
        let load = ["-R", path];
        let loaded = std::process::Command::new("/usr/sbin/conntrack")
            .args(load)
            .output();
        let errors = String::from_utf8(loaded.unwrap().stderr).unwrap();
        assert!(
            errors.contains("memory") || errors.contains("space"),
            "{errors}"
        );
    });
}

#[test]
fn host_ports_of_other_programs_take_nothing_from_policy_local() {
    lab::test(|| {
        let scene = Scene::new(Services::dual());
        scene.nft(&host_ports::nftables_rules());
        check_all(&scene, &OTHERS);
        check_rows(&scene, &load_balancer(), &PLAIN[..1]);
    });
}

/// Without `--cluster-cidr`, the Node's podCIDRs and the devices of Pods tell who is inside.
#[test]
fn without_a_cluster_cidr_clients_of_this_node_are_inside() {
    lab::test(|| {
        let scene = Scene::with(Services::dual(), ServiceAddresses::Routes, |config| {
            config.local_mode = LocalMode::default();
        });
        let elsewhere: Row = ("podB2", &["pod2/client"]);
        check_all(&scene, &[PLAIN[0], elsewhere, PLAIN[2], PLAIN[3], PLAIN[4]]);
    });
}

/// A network plugin may give a Pod of another node an address in our Node's podCIDRs: its device tells the truth.
fn a_pod_that_arrives_from_a_link_is_on_another_node<D: Subject>() {
    let mut scene = Scene::<D>::serving(Services::dual());
    let node = &mut scene.cluster.node;
    let [ours, theirs] = ["2", "3"].map(|it| format!("172.20.0.{it}/24 fd00:172:20::{it}/64"));
    let other = node.link("eth9", &ours, "node-c", &theirs);
    let pod = other.pod("podC", "10.244.1.77 fd00:244:1::77");
    // With nftables, the source is decided before the endpoint, so an endpoint here sees this node's address too.
    let here = if D::TRANSLATES { "node" } else { "pod" };
    let expected = [format!("pod2/{here}"), "podB1/node".to_owned()];
    for frontend in [external_ip(), load_balancer(), node_port()].as_flattened() {
        let (protocol, to) = frontend.split_once(' ').unwrap();
        let mut answers = Answers::new();
        for _ in 0..6 * D::ROUNDS {
            let answer = match protocol {
                "tcp" => pod.ask_tcp(to),
                _ => pod.ask_udp(to),
            };
            let (backend, source) = (answer.backend(), answer.source());
            let (backend, source) = (backend.unwrap(), source.unwrap().to_string());
            let is_kept = ["10.244.1.77", "fd00:244:1::77"].contains(&&*source);
            let who = if is_kept { "pod" } else { "node" };
            answers.insert(format!("{backend}/{who}"));
        }
        assert_eq!(answers, Answers::from(expected.clone()), "{frontend}");
    }
}

with_each_dataplane!(a_pod_that_arrives_from_a_link_is_on_another_node);

/// IPVS' rule for FTP takes packets to unprivileged ports for a persistent virtual server at port 21.
#[test]
fn affinity_at_port_21_takes_no_other_port_of_the_node() {
    lab::test(|| {
        let mut ftp = Service::new("ftp", ["10.96.5.1", "fd00:10:96::5:1"])
            .external_ips(["172.18.0.2", "fd00:172:18::2"])
            .ports(vec![Port::http("ftp", 21)])
            .endpoints(&[POD2, POD_B1]);
        ftp.has_affinity = true;
        let scene = Scene::new(Services::dual().with(ftp));
        let daemon = [
            "tcp 172.18.0.2:9999".to_owned(),
            "tcp [fd00:172:18::2]:9999".to_owned(),
        ];
        for client in ["ext", "peer", "pod3"] {
            check(&scene, client, &daemon, &["HOST/client"]);
        }
        check(&scene, "node", &daemon, &["HOST/node"]);
        for frontend in ["tcp 172.18.0.2:21", "tcp [fd00:172:18::2]:21"] {
            assert_eq!(scene.ask("ext", frontend, 6).len(), 1, "{frontend}");
        }
    });
}
