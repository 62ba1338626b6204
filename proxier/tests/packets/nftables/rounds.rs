//! Rounds of the real dataplane: repairs, restarts, and the connections of endpoints that left.

use std::time::Duration;

use ::nftables::RulesClient;
use lab::net::{Answer, Cluster, Connection, UdpClient};
use proxier::testing::clock;
use proxier::testing::dataplane::Dataplane as _;
use proxier::testing::dataplane::ipvs::Ipvs;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::dataplane::nftables::TABLE;
use proxier::testing::filter::{self, FilterConfig, MarkBit};
use proxier::testing::model::Protocol;
use proxier::testing::plan::ServiceAddresses;
use serde_json::Value;

use super::super::scene::{self, Clients, Subject as _, flows, nft};
use super::super::services::{Endpoint, POD_B1, POD1, POD2, Port, Service, Services};
use super::{Maps, generation};
use crate::check_dual;

/// TCP frontends of Service web and Service local, each with a client.
const TCP: [(&str, &str); 8] = [
    ("pod3", "10.96.1.1:80"),
    ("pod3", "[fd00:10:96::1]:80"),
    ("ext", "198.51.100.2:80"),
    ("ext", "[2001:db8:51::1]:80"),
    ("peer", "172.18.0.2:30080"),
    ("node", "10.96.1.1:80"),
    ("ext", "198.51.100.4:80"),
    ("pod3", "[fd00:172:18::2]:30081"),
];

/// The drain of Service web, in seconds.
const DRAIN: &str = "60";

/// A connection, and the Pod that serves it.
struct Open {
    connection: Connection,
    pod: String,
}

impl Open {
    fn all(maps: &Maps) -> Vec<Self> {
        let open = TCP.iter().map(|(client, to)| {
            let connection = maps.clients().host(client).connect(*to).unwrap();
            let pod = connection.greeting().backend().unwrap().to_owned();
            Self { connection, pod }
        });
        open.collect()
    }

    /// Asserts that the Pod still serves the connection.
    #[track_caller]
    fn check(&mut self) {
        let answer = self.connection.ask();
        assert_eq!(answer.backend(), Some(&*self.pod), "{answer}");
    }
}

/// Returns our sets and chains without the values of counters, sorted: the kernel lists them in the order of their creation.
fn listing() -> Vec<String> {
    let listed = std::process::Command::new("/usr/sbin/nft")
        .args(["--stateless", "list", "table", "inet", TABLE])
        .output()
        .unwrap();
    assert!(listed.status.success());
    let text = String::from_utf8(listed.stdout).unwrap();
    let content = text.strip_suffix("\n}\n").unwrap();
    let mut blocks: Vec<String> = content.split("\n\n").map(str::to_owned).collect();
    blocks.sort();
    blocks
}

#[test]
fn what_other_programs_change_is_repaired_and_connections_continue() {
    lab::test(|| {
        let mut maps = Maps::serving(Services::dual());
        let mut open = Open::all(&maps);
        let before = listing();
        for sabotage in [
            "delete table inet T",
            "flush chain inet T dispatch",
            "flush map inet T frontends-4",
            "delete element inet T endpoints-6 { fd00:10:96::1 . udp . 53 . 0x00000001 }",
            "add rule inet T new drop",
            "add chain inet T foreign { type filter hook forward priority 0; policy drop; }",
            "add set inet T foreign { type ipv4_addr; }",
        ] {
            assert!(!maps.proxier.dataplane_mut().finds_changed_rules());
            nft(&maps.cluster.node, &sabotage.replace('T', TABLE));
            assert!(
                maps.proxier.dataplane_mut().finds_changed_rules(),
                "{sabotage}"
            );
            maps.round(Duration::ZERO);
            assert_eq!(listing(), before, "{sabotage}");
            open.iter_mut().for_each(Open::check);
        }
        // A change elsewhere is none of ours.
        nft(&maps.cluster.node, "add table inet other");
        let generation_before = generation();
        maps.proxier.resync(Duration::from_secs(1_000_000)).unwrap();
        assert_eq!(generation(), generation_before);
    });
}

#[test]
fn a_restart_writes_nothing() {
    lab::test(|| {
        let services = |endpoints: &[_]| {
            Services::dual().edit("web", |web| {
                web.has_affinity = true;
                *web = web.clone().endpoints(endpoints);
            })
        };
        let mut maps = Maps::serving(services(&[POD1, POD2, POD_B1]));
        // Now the order of the slots is not that of the addresses.
        maps.program(services(&[POD2, POD_B1]));
        maps.program(services(&[POD1, POD2, POD_B1]));
        // The chains of two endpoints are deleted.
        maps.proxier.resync(clock::since_boot()).unwrap();
        let before = generation();
        maps.replace(services(&[POD1, POD2, POD_B1]));
        assert_eq!(generation(), before);
        maps.round(Duration::ZERO);
        assert_eq!(generation(), before);
        // One endpoint left while no process ran.
        maps.replace(services(&[POD1, POD_B1]));
        assert_eq!(generation(), before + 1);
    });
}

#[test]
fn connections_to_a_removed_endpoint_end_at_the_deadline() {
    lab::test(|| {
        let services = |endpoints: &[_]| {
            Services::dual().edit("web", |web| {
                let weights = "10.244.9.0/24:0, [fd00:244:9::/112]:0, *:1";
                web.annotations = vec![("drain-seconds", DRAIN), ("weights", weights)];
                *web = web.clone().endpoints(endpoints);
            })
        };
        // So many that a resync forgets those without connections.
        let idle = (1..=200).map(|number| {
            let v4 = format!("10.244.9.{number}").leak();
            let v6 = format!("fd00:244:9::{number:x}").leak();
            Endpoint::new(v4, v6, "node-b")
        });
        let all: Vec<Endpoint> = idle.chain([POD1, POD_B1]).collect();
        let mut maps = Maps::serving(services(&all));
        let mut open = Open::all(&maps);
        maps.program(services(&[POD2]));
        let is_of_web = |place: usize| place < 6;
        open.iter_mut().for_each(Open::check);
        for (client, to) in &TCP[..6] {
            let answer = maps.clients().host(client).ask_tcp(*to);
            assert_eq!(answer.backend(), Some("pod2"), "{client} to {to}: {answer}");
        }
        let resynced = maps
            .proxier
            .resync(clock::since_boot() + Duration::from_secs(1));
        assert_eq!(resynced.unwrap().failures().count(), 0);
        maps.round(Duration::from_secs(50));
        open.iter_mut().for_each(Open::check);
        maps.round(Duration::from_secs(70));
        for (place, open) in open.iter_mut().enumerate() {
            if is_of_web(place) {
                let answer = open.connection.ask();
                assert_eq!(answer, Answer::Reset, "{:?}", TCP[place]);
            } else {
                open.check();
            }
        }
        assert_eq!(maps.proxier.next_due(), None);
    });
}

#[test]
fn a_new_process_ends_the_connections_of_endpoints_that_left_before() {
    lab::test(|| {
        let services = |endpoints: &[_]| {
            Services::dual().edit("web", |web| {
                web.annotations = vec![("drain-seconds", DRAIN)];
                *web = web.clone().endpoints(endpoints);
            })
        };
        let mut maps = Maps::serving(services(&[POD1, POD_B1]));
        let mut open = Open::all(&maps);
        maps.program(services(&[POD2]));
        maps.replace(services(&[POD2]));
        open.iter_mut().for_each(Open::check);
        maps.round(Duration::from_secs(70));
        let (of_web, of_local) = open.split_at_mut(6);
        for open in of_web {
            assert_eq!(open.connection.ask(), Answer::Reset);
        }
        of_local.iter_mut().for_each(Open::check);
    });
}

#[test]
fn an_edit_drains_and_a_deletion_does_not() {
    lab::test(|| {
        let mut maps = Maps::serving(Services::dual());
        let mut open = Open::all(&maps);
        let moved = Services::dual().edit("web", |web| {
            web.ports[0] = Port::http("http", 81);
        });
        maps.program(&moved);
        open.iter_mut().for_each(Open::check);
        maps.program(moved.without("web"));
        // Sweeps of ended drains are apart.
        maps.round(Duration::from_secs(10));
        open[6..].iter_mut().for_each(Open::check);
        let tracked = flows(Protocol::Tcp);
        let of_web = ["10.96.1.1:80 ", "[fd00:10:96::1]:80 ", "198.51.100.2:80 "];
        // Packets of their clients are tracked again, but reach no Pod.
        let is_of_web = |flow: &&String| of_web.iter().any(|it| flow.starts_with(it));
        let mut at_pods = tracked
            .iter()
            .filter(is_of_web)
            .filter(|it| it.ends_with(":8080"));
        assert_eq!(at_pods.next(), None, "{tracked:?}");
        assert!(
            tracked
                .iter()
                .any(|flow| flow.starts_with("198.51.100.4:80 "))
        );
    });
}

#[test]
fn udp_clients_leave_a_removed_endpoint_at_once() {
    lab::test(|| {
        let services = |endpoints: &[_]| {
            Services::dual().edit("web", |web| *web = web.clone().endpoints(endpoints))
        };
        let mut maps = Maps::serving(Services::dual());
        let to = [
            ("pod3", "10.96.1.1:53"),
            ("pod3", "[fd00:10:96::1]:53"),
            ("ext", "198.51.100.2:53"),
            ("peer", "[fd00:172:18::2]:30053"),
            ("node", "10.96.1.1:53"),
            ("ext", "198.51.100.4:53"),
            ("pod3", "10.96.2.1:53"),
        ];
        let mut asking: Vec<(UdpClient, String)> = Vec::new();
        for (client, to) in to {
            let mut client = maps.clients().host(client).udp_client(to);
            let pod = client.ask().backend().unwrap().to_owned();
            asking.push((client, pod));
        }
        maps.program(services(&[POD2]));
        let of_web = |flow: &String| flow.starts_with("10.96.1.1:53 ");
        assert!(!flows(Protocol::Udp).iter().any(of_web));
        let (of_web, of_local) = asking.split_at_mut(5);
        for (client, _) in of_web {
            assert_eq!(client.ask().backend(), Some("pod2"));
        }
        for (client, pod) in of_local {
            assert_eq!(client.ask().backend(), Some(&**pod));
        }
    });
}

/// While a node moves to IPVS, the rules beside it exist before its virtual servers.
#[test]
fn the_rules_beside_ipvs_take_no_connection() {
    lab::test(|| {
        let maps = Maps::serving(Services::dual());
        let mut ipvs = <Ipvs<Linux>>::start(
            ServiceAddresses::Loopback,
            &FilterConfig {
                local_mode: scene::cluster_networks(),
                ..FilterConfig::default()
            },
            &tempfile::tempdir().unwrap(),
        );
        scene::receive(&mut ipvs, Services::dual());
        ipvs.preview(clock::since_boot()).unwrap();
        let table = ipvs.filter().unwrap().table(ipvs.wanted());
        let mut rules = RulesClient::open(filter::TABLE).unwrap();
        rules.restore(&table).unwrap();
        check_dual(maps.clients(), "unreachable");
        rules.delete().unwrap();
        check_dual(maps.clients(), "unreachable");
    });
}

/// The node's own addresses and the links of Pods are no service addresses.
#[test]
fn no_service_address_is_local() {
    lab::test(|| {
        let maps = Maps::serving(Services::dual());
        let node = &maps.cluster.node;
        let local = ["-4", "-6"]
            .map(|version| node.exec(&["ip", version, "route", "show", "table", "local"]));
        let own = |line: &&str| Cluster::NODE_ADDRESSES.iter().any(|it| line.contains(it));
        assert!(local[0].lines().any(|line| own(&line)));
        for address in ["10.96.", "198.51.100.", "fd00:10:96:", "2001:db8:51:"] {
            let found = local.iter().any(|routes| routes.contains(address));
            assert!(!found, "{address}: {local:?}");
        }
    });
}

/// nft 1.0.6 aborts at some forms of rules that the kernel accepts. Operators and other programs run it, so it must read our
/// table in every state.
#[test]
fn nft_reads_the_table_in_every_state() {
    lab::test(|| {
        let mut maps = Maps::configured(Services::dual(), ServiceAddresses::None, |config| {
            config.answer_ping = true;
            config.input_accept_bit = Some(MarkBit::INPUT_ACCEPT);
            config.forward_accept_bit = Some(MarkBit::INPUT_ACCEPT);
        });
        let node = &maps.cluster.node;
        let nft = |words: &[&str]| node.exec(&[&["/usr/sbin/nft"], words].concat());
        let version = nft(&["--version"]);
        println!("{version}");
        let services = || Services::dual();
        let of_web = |edit: fn(&mut Service)| services().edit("web", edit);
        let states = [
            ("no Services", String::new(), 0),
            ("each kind of frontend", services().to_string(), 1),
            (
                "affinity",
                of_web(|web| web.has_affinity = true).to_string(),
                1,
            ),
            (
                "affinity at policy Local",
                services()
                    .edit("local", |local| local.has_affinity = true)
                    .to_string(),
                1,
            ),
            (
                "a drain, with affinity",
                of_web(|web| {
                    web.has_affinity = true;
                    *web = web.clone().endpoints(&[POD_B1]);
                })
                .to_string(),
                1,
            ),
            (
                "hashes of the source",
                of_web(|web| web.annotations = vec![("scheduler", "sh")]).to_string(),
                1,
            ),
            (
                "hashes of the source and the port, more slots than picks are prepared",
                of_web(|web| {
                    let flags = ("scheduler-flags", "port");
                    web.annotations = vec![("scheduler", "mh"), flags];
                })
                .to_string(),
                1,
            ),
            (
                "weights",
                of_web(|web| {
                    let weights = ("weights", "10.244.2.2:100, *:1");
                    web.annotations = vec![("scheduler", "wrr"), weights];
                })
                .to_string(),
                1,
            ),
            (
                "a removed Service",
                services().without("web").to_string(),
                0,
            ),
        ];
        for (state, manifests, of_frontend) in states {
            scene::program(&mut maps.proxier, &manifests);
            let clients = Clients {
                cluster: &maps.cluster,
                rounds: 1,
            };
            // Affinity learns.
            clients.ask("pod3", "tcp 10.96.1.1:80", of_frontend);
            clients.ask("ext", "udp [2001:db8:51::4]:53", of_frontend);
            for words in [
                &["list", "ruleset"][..],
                &["-a", "-n", "list", "ruleset"],
                &["list", "table", "inet", TABLE],
            ] {
                let listed = nft(words);
                assert!(listed.contains("chain dispatch"), "{state}: {listed}");
                let is_of_web =
                    |line: &str| line.contains("10.96.1.1 . ") && line.contains(" : goto ");
                let has_web = listed.lines().any(is_of_web);
                assert_eq!(has_web, of_frontend == 1, "{state}: {listed}");
            }
            for words in [
                &["-j", "list", "ruleset"][..],
                &["-j", "-t", "list", "table", "inet", TABLE],
            ] {
                let listed: Value = serde_json::from_str(&nft(words)).unwrap();
                let objects = listed["nftables"].as_array().unwrap();
                let chains = objects.iter().filter_map(|it| it["chain"]["name"].as_str());
                assert!(chains.count() > 64, "{state}: {listed}");
            }
        }
    });
}
