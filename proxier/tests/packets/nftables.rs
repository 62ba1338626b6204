//! The dataplane of nf_tables alone: the same clients, without IPVS and without local service addresses.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use lab::net::{Host, ask_udp_within};
use nftables::RulesClient;
use proxier::testing::clock;
use proxier::testing::dataplane::nftables::{Nftables, TABLE};
use proxier::testing::model::TrafficPolicy;

use super::load::{PATIENCE, Tally, meanwhile, newcomer, newcomer_over_tcp};
use super::observed::{self, Row};
use super::scene::{Scene, program};
use super::services::{Endpoint, POD_B1, POD1, POD2, Services};
use crate::{CLUSTER, KUBE_PROXY, at, check_dual, check_in};

mod replaced;
mod rounds;

/// How often the endpoints of a Service change while clients ask.
const CHANGES: usize = 200;

/// The network, and our proxy on its node `node-a`.
type Maps = Scene<Nftables>;

impl Maps {
    /// Makes a round `later` than now.
    fn round(&mut self, later: Duration) {
        let applied = self.proxier.sync(clock::since_boot() + later).unwrap();
        let failures: Vec<_> = applied.failures().collect();
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Replaces our proxy by a new process, which has the Services of `manifests`.
    fn replace(&mut self, manifests: impl Display) {
        self.restart();
        self.program(manifests);
    }
}

/// Returns the generation of the packet filter, which each transaction changes.
fn generation() -> u32 {
    let mut client = RulesClient::open(TABLE).unwrap();
    client.read_generation().unwrap()
}

const KUBE_PROXY_NFTABLES: &str = include_str!("../conformance/kube-proxy-nftables-1.36.2.json");

/// Ports of external addresses that no Service has. With IPVS the address is local, so that nobody else can answer.
const UNLISTED: [&str; 3] = [
    "tcp 198.51.100.10:22",
    "tcp 198.51.100.10:30080",
    "tcp 198.51.100.11:30091",
];

/// Where kube-proxy's nftables mode gives other answers than ours: frontends and clients.
const DEPARTURES: [(&str, &[&str]); 6] = [
    // Without an endpoint on this node, policy internal Local refuses at once instead of dropping.
    (
        "tcp 10.96.1.16:80",
        &["ext", "ext2", "node", "peer", "pod3"],
    ),
    (
        "tcp 10.96.1.42:80",
        &["ext", "ext2", "node", "peer", "pod3"],
    ),
    // Source ranges: there, the source of the node's own connections was another of its addresses.
    ("tcp 198.51.100.12:80", &["node"]),
    ("tcp 198.51.100.15:80", &["node"]),
    ("tcp 198.51.100.19:80", &["node"]),
    // Node ports: there, at the primary addresses only.
    ("tcp 203.0.113.1:30080", &["ext"]),
];

/// Returns what clients should get.
fn expected() -> Vec<Row> {
    let mut rows = observed::rows(KUBE_PROXY);
    let unlisted = rows.iter_mut();
    for row in unlisted.filter(|row| UNLISTED.contains(&&*row.frontend)) {
        row.answers = ["timeout".to_owned()].into();
    }
    rows
}

#[test]
fn each_client_gets_the_same_answers_as_with_kube_proxy_except_for_the_departures() {
    lab::test(|| {
        let maps = Maps::serving(CLUSTER);
        let differences = observed::differences(&expected(), maps.clients());
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

#[test]
fn kube_proxys_nftables_mode_gives_the_same_answers_except_for_the_departures() {
    let ours = expected();
    let mut departures = BTreeSet::new();
    for row in observed::rows(KUBE_PROXY_NFTABLES) {
        let is_same = |ours: &&Row| ours.frontend == row.frontend && ours.client == row.client;
        // Each client asked a few times, so not all endpoints answered.
        if !ours.iter().find(is_same).unwrap().permits(&row.answers) {
            departures.insert((row.frontend, row.client));
        }
    }
    let listed = DEPARTURES.iter().flat_map(|(frontend, clients)| {
        let pair = |client: &&str| ((*frontend).to_owned(), (*client).to_owned());
        clients.iter().map(pair)
    });
    assert_eq!(departures, listed.collect());
}

#[test]
fn each_client_reaches_each_service_over_tcp_and_udp_in_both_families() {
    lab::test(|| check_dual(Maps::serving(Services::dual()).clients(), "unreachable"));
}

#[test]
fn each_address_of_the_node_serves_node_ports_of_policy_local_over_maps() {
    lab::test(|| {
        let maps = Maps::serving(Services::dual());
        for (v4, v6) in [
            ("203.0.113.1", "2001:db8:113::1"),
            ("192.0.2.1", "2001:db8:2::1"),
        ] {
            let frontends = at(v4, v6, 30081, 30054);
            // podB2 is masqueraded on its way to pod2, too.
            let rows = super::local::PLAIN.into_iter();
            for (client, expected) in rows.filter(|(client, _)| *client != "podB2") {
                check_in(maps.clients(), client, &frontends, expected);
            }
        }
        super::local::check_own_sources(maps.clients());
    });
}

#[test]
fn sctp_is_translated_as_tcp() {
    lab::test(|| {
        let maps = Maps::serving(Services::dual().instead_of_udp("SCTP"));
        maps.cluster.pod1.serve_sctp(5353);
        maps.cluster.pod_b1.serve_sctp(5353);
        let frontends = ["sctp 10.96.1.1:53", "sctp [fd00:10:96::1]:53"].map(String::from);
        let both = ["pod1/client", "podB1/client"];
        check_in(maps.clients(), "pod3", &frontends, &both);
    });
}

/// A client outside was led to an endpoint of another node, which serves clients inside only under policy Local.
#[test]
fn affinity_ends_where_policy_local_forbids_the_endpoint() {
    lab::test(|| {
        let services = |policy| {
            Services::dual().edit("web", |web| {
                web.has_affinity = true;
                web.external_policy = policy;
            })
        };
        let mut maps = Maps::serving(services(TrafficPolicy::Cluster));
        let frontends = [
            at("198.51.100.1", "2001:db8:51::1", 80, 53),
            at("198.51.100.2", "2001:db8:51::2", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
        ];
        let frontends = frontends.as_flattened();
        let ask = |maps: &Maps, client, to: &String| {
            let answers = maps.clients().ask(client, to, 4);
            assert_eq!(answers.len(), 1, "{client} to {to}: {answers:?}");
            answers.into_iter().next().unwrap()
        };
        let all = |maps: &Maps, client| -> Vec<String> {
            frontends.iter().map(|to| ask(maps, client, to)).collect()
        };
        let (outside, inside) = (all(&maps, "ext"), all(&maps, "pod3"));
        assert!(
            outside.iter().any(|it| it.starts_with("podB1/")),
            "{outside:?}"
        );
        for restarts in [false, true] {
            maps.program(services(TrafficPolicy::Cluster));
            all(&maps, "ext");
            if restarts {
                maps.replace(services(TrafficPolicy::Local));
            } else {
                maps.program(services(TrafficPolicy::Local));
            }
            for answer in all(&maps, "ext") {
                assert_eq!(answer, "pod1/client", "a restart: {restarts}");
            }
        }
        // Clients inside reach both, and those at the endpoint that all may have stay there.
        for (before, after) in inside.iter().zip(all(&maps, "pod3")) {
            let stays = !before.starts_with("pod1/") || after.starts_with("pod1/");
            assert!(stays, "{before}, then {after}");
        }
    });
}

/// A client that still tries to reach a removed endpoint sends its packets there again, and teaches nothing by it.
#[test]
fn affinity_forgets_an_endpoint_that_never_answers() {
    const SILENT: Endpoint = Endpoint::new("10.244.1.99", "fd00:244:1::99", "node-a");
    lab::test(|| {
        let services = |endpoints: &[Endpoint]| {
            Services::dual().edit("web", |web| {
                web.has_affinity = true;
                *web = web.clone().endpoints(endpoints);
            })
        };
        let mut maps = Maps::serving(services(&[SILENT]));
        let Maps {
            cluster, proxier, ..
        } = &mut maps;
        let pod = &cluster.pod3;
        thread::scope(|scope| {
            let tries = scope.spawn(|| {
                let limit = lab::patience(Duration::from_secs(8));
                pod.connect_within("10.96.1.1:80", limit).is_ok()
            });
            thread::sleep(lab::patience(Duration::from_millis(500)));
            program(proxier, services(&[POD1]));
            // TCP repeats the first packet after 1 s and 3 s.
            assert!(!tries.join().unwrap(), "the silent endpoint answered");
        });
        let answer = pod.ask_tcp("10.96.1.1:80");
        assert_eq!(answer.backend(), Some("pod1"), "{answer}");
    });
}

#[test]
fn a_client_with_affinity_stays_at_its_endpoint() {
    lab::test(|| {
        let services = |endpoints: &[Endpoint]| {
            Services::dual().edit("web", |web| {
                web.has_affinity = true;
                *web = web.clone().endpoints(endpoints);
            })
        };
        let mut maps = Maps::serving(services(&[POD1, POD_B1]));
        let frontends = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        let clients = ["pod3", "ext", "node"];
        let ask = |maps: &Maps| {
            let mut answers = Vec::new();
            for client in clients {
                for frontend in &frontends {
                    let of_one = maps.clients().ask(client, frontend, 8);
                    assert_eq!(of_one.len(), 1, "{client} to {frontend}: {of_one:?}");
                    answers.extend(of_one);
                }
            }
            answers
        };
        let first = ask(&maps);
        // Twelve independent draws of two.
        let of_pod1 = first.iter().filter(|it| it.starts_with("pod1/")).count();
        assert!((1..first.len()).contains(&of_pod1), "{first:?}");
        // Neither more endpoints nor another process moves a client.
        maps.program(services(&[POD1, POD2, POD_B1]));
        assert_eq!(ask(&maps), first);
        maps.replace(services(&[POD1, POD2, POD_B1]));
        assert_eq!(ask(&maps), first);
        // A removed endpoint loses its clients, and no others.
        maps.program(services(&[POD2, POD_B1]));
        for (before, after) in first.iter().zip(ask(&maps)) {
            let is_removed = before.starts_with("pod1/");
            assert!(is_removed != (*before == after), "{before}, then {after}");
            assert!(!after.starts_with("pod1/"), "{after}");
        }
    });
}

/// Without room for a client, it is served as without affinity: source ranges and policies still hold.
#[test]
fn a_full_map_of_affinity_fails_closed() {
    lab::test(|| {
        const BALANCED: &str = "tcp 198.51.100.30:80";
        let services = Services::dual().edit("web", |web| {
            web.has_affinity = true;
            web.external_policy = TrafficPolicy::Local;
            web.load_balancer_ips = vec!["198.51.100.30"];
            web.source_ranges = vec!["203.0.113.0/24".to_owned()];
            *web = web.clone().endpoints(&[POD1, POD_B1]);
        });
        let maps = Maps::serving(services);
        for third in (0..=255_u32).step_by(64) {
            let mut elements = String::new();
            for client in (third << 8)..((third + 64) << 8) {
                for port in 1..=4 {
                    let [.., high, low] = client.to_be_bytes();
                    let client = format!("10.9.9.9 . tcp . {port} . 10.77.{high}.{low}");
                    writeln!(elements, "{client} : 10.244.1.2 . 8080,").unwrap();
                }
            }
            maps.nft(&format!(
                "add element inet {TABLE} affinity-4 {{ {elements} }}"
            ));
        }
        // It is full: nobody is remembered.
        let of_web = maps.clients().ask("pod3", "tcp 10.96.1.1:80", 40);
        assert_eq!(of_web.len(), 2, "{of_web:?}");
        for _ in 0..10 {
            let allowed = maps.clients().ask("ext", BALANCED, 1);
            let is_local = allowed.iter().all(|it| it.starts_with("pod1/"));
            assert!(is_local, "{allowed:?}");
        }
        for client in ["pod3", "podB1"] {
            check_in(maps.clients(), client, &[BALANCED.to_owned()], &["timeout"]);
        }
    });
}

/// How many of these connections, of [`DRAWS`], pod1 may get if it gets half, a quarter, all or none: within five
/// standard deviations.
const HALF: RangeInclusive<usize> = 33..=87;
const QUARTER: RangeInclusive<usize> = 6..=54;
const NONE: RangeInclusive<usize> = 0..=0;
const ALL_OR_NONE: [RangeInclusive<usize>; 2] = [NONE, DRAWS..=DRAWS];

/// The connections of each scheduler.
const DRAWS: usize = 120;

/// The schedulers that count connections, which nf_tables cannot.
const COUNTING: [&str; 8] = ["lc", "wlc", "sed", "nq", "lblc", "lblcr", "twos", "ovf"];

#[test]
fn schedulers_share_connections_by_weight_and_by_client() {
    lab::test(|| {
        let mut maps = Maps::serving(Services::dual());
        let weights_of_three = "10.244.2.2:3, [fd00:244:2::2]:3, *:1";
        for (scheduler, flags, weights, shares) in [
            ("rr", "", "*:1", &[HALF][..]),
            ("wrr", "", weights_of_three, &[QUARTER]),
            ("sh", "", "*:1", &ALL_OR_NONE),
            ("sh", "port", "*:1", &[HALF]),
            ("mh", "", "*:1", &[HALF]),
            ("mh", "none", "*:1", &ALL_OR_NONE),
            ("mh", "port", weights_of_three, &[QUARTER]),
            ("dh", "", "*:1", &ALL_OR_NONE),
            ("fo", "", weights_of_three, &[NONE]),
        ] {
            maps.program(Services::dual().edit("web", |web| {
                web.annotations = vec![("scheduler", scheduler), ("weights", weights)];
                let flags = Some(("scheduler-flags", flags)).filter(|(_, flags)| !flags.is_empty());
                web.annotations.extend(flags);
            }));
            assert_eq!(maps.proxier.problems(), []);
            for to in ["10.96.1.1:53", "[fd00:10:96::1]:53"] {
                let answers = draws(&maps.cluster.pod3, &[to], DRAWS);
                let of_pod1 = answers.iter().filter(|it| it[0] == "pod1").count();
                let is_fair = shares.iter().any(|share| share.contains(&of_pod1));
                assert!(is_fair, "{scheduler} at {to}: {of_pod1} of {DRAWS}");
            }
        }
        for scheduler in COUNTING {
            maps.program(Services::dual().edit("web", |web| {
                web.annotations = vec![("scheduler", scheduler)];
            }));
            let problems = maps.proxier.problems();
            let [problem] = &problems[..] else {
                panic!("{scheduler}: {problems:?}");
            };
            assert_eq!(problem.value, scheduler);
            assert!(
                problem.message.ends_with("; rr is used instead"),
                "{problem}"
            );
            let answers = draws(&maps.cluster.pod3, &["10.96.1.1:53"], 24);
            let pods: BTreeSet<Vec<String>> = answers.into_iter().collect();
            assert_eq!(pods.len(), 2, "{scheduler}: {pods:?}");
        }
    });
}

/// With counters, two Services that a client asks in turn would each always get the same endpoint.
#[test]
fn services_with_as_many_endpoints_do_not_take_turns_together() {
    lab::test(|| {
        let maps = Maps::serving(Services::dual());
        let two = ["10.96.1.1:53", "10.96.2.1:53"];
        let answers = draws(&maps.cluster.pod3, &two, DRAWS / 2);
        let pairs: BTreeSet<Vec<String>> = answers.into_iter().collect();
        assert_eq!(pairs.len(), 4, "{pairs:?}");
    });
}

/// Asks each of `frontends` in turn, so many times, and returns who answered.
fn draws(client: &Host, frontends: &[&str], times: usize) -> Vec<Vec<String>> {
    let ask = |to: &&str| {
        let answer = ask_udp_within(to.parse().unwrap(), PATIENCE);
        answer.backend().unwrap().to_owned()
    };
    let round = |_| frontends.iter().map(ask).collect();
    client.run(|| (0..times).map(round).collect())
}

/// An old and a new endpoint both answer, so each question is answered, whichever slots the packet finds.
#[test]
fn clients_notice_no_change_of_endpoints() {
    lab::test(|| {
        let mut maps = Maps::serving(Services::dual());
        let Maps {
            cluster, proxier, ..
        } = &mut maps;
        let clients = [
            (&cluster.pod3, "10.96.1.1:53"),
            (&cluster.pod2, "[fd00:10:96::1]:53"),
            (&*cluster.ext, "198.51.100.2:53"),
            (&*cluster.ext2, "[2001:db8:51::1]:53"),
            (&*cluster.peer, "172.18.0.2:30053"),
            (&*cluster.node, "10.96.1.1:53"),
            (&cluster.pod3, "[fd00:10:96::1]:80"),
            (&*cluster.ext, "198.51.100.2:80"),
            (&*cluster.peer, "[fd00:172:18::2]:30080"),
        ];
        let lists: [&[Endpoint]; 4] = [&[POD_B1], &[POD1, POD2], &[POD1], &[POD1, POD2, POD_B1]];
        let change = || {
            for endpoints in lists.iter().cycle().take(CHANGES) {
                let services = Services::dual();
                let web = services.edit("web", |web| *web = web.clone().endpoints(endpoints));
                program(proxier, web);
                thread::sleep(lab::patience(Duration::from_millis(5)));
            }
        };
        let ask = |to: SocketAddr, is_over: &AtomicBool| match to.port() {
            80 | 30080 => newcomer_over_tcp(to, is_over),
            _ => newcomer(to, is_over),
        };
        let tallies: Vec<Tally> = meanwhile(&clients, ask, change);
        println!(
            "{} questions",
            tallies.iter().map(|it| it.asked).sum::<usize>()
        );
        for ((_, to), tally) in clients.iter().zip(&tallies) {
            assert!(tally.asked > 20 && tally.lost.is_empty(), "{to}: {tally:?}");
        }
    });
}
