//! The dataplane of nf_tables alone: the same clients, without IPVS and without local service addresses.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use lab::net::{Cluster, Host, ask_udp_within};
use nftables::RulesClient;
use proxier::testing::dataplane::nftables::ServiceTable;
use proxier::testing::plan::{Changed, Desired, Profile, SelectedEndpoint};

use super::load::{PATIENCE, meanwhile, newcomer};
use super::observed;
use super::scene::{Clients, network};
use super::services::{Endpoint, POD_B1, POD1, POD2, Services};
use crate::desired::{planned, rules};
use crate::{CLUSTER, KUBE_PROXY, at, check_dual, check_in};

const TABLE: &str = "ipvs-proxier";

/// How often the endpoints of a Service change while clients ask.
const CHANGES: usize = 200;

/// The network, and the rules of its node.
struct Maps {
    cluster: Cluster,
    rules: Rules,
}

/// The rules that the kernel has.
struct Rules {
    client: RulesClient,
    table: ServiceTable,
    desired: Desired,
}

impl Maps {
    /// Returns the network with the Services of `manifests`.
    fn new(manifests: impl Display) -> Self {
        let cluster = network();
        // No service address is local, so a process of the node needs a route.
        for (version, via, source) in [
            ("-4", "203.0.113.9", "172.18.0.2"),
            ("-6", "2001:db8:113::9", "fd00:172:18::2"),
        ] {
            let route = ["ip", version, "route", "add", "default", "via", via];
            cluster.node.exec(&[&route[..], &["src", source]].concat());
        }
        let mut rules = Rules {
            client: RulesClient::open(TABLE).unwrap(),
            table: ServiceTable::new(&rules(), None),
            desired: Desired::default(),
        };
        rules.client.restore(rules.table.table()).unwrap();
        rules.program(manifests);
        Self { cluster, rules }
    }

    fn clients(&self) -> Clients<'_> {
        // Endpoints are drawn at random: of two, one is missed in 6 requests with probability 1/32.
        let rounds = 12;
        let cluster = &self.cluster;
        Clients { cluster, rounds }
    }
}

impl Rules {
    /// Programs the difference between the Services before and those of `manifests`, in one transaction.
    fn program(&mut self, manifests: impl Display) {
        self.follow(planned(manifests, &Cluster::NODE_ADDRESSES));
    }

    fn follow(&mut self, mut after: Desired) {
        let changed = Changed::between(self.desired.clone(), &mut after);
        let commands = self.table.follow(&after, &changed);
        self.client.apply(&commands).unwrap();
        self.desired = after;
    }

    /// Writes what a new process computes, which knows nothing of the kernel.
    fn restart(&mut self) {
        self.table = ServiceTable::new(&rules(), None);
        let all = Changed::between(Desired::default(), &mut self.desired);
        self.table.follow(&self.desired, &all);
        self.client.restore(self.table.table()).unwrap();
    }
}

#[test]
fn each_client_gets_the_same_answers_as_with_kube_proxy_except_for_the_departures() {
    lab::test(|| {
        let maps = Maps::new(CLUSTER);
        let rows = observed::rows(KUBE_PROXY);
        let differences = observed::differences(&rows, maps.clients());
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

#[test]
fn each_client_reaches_each_service_over_tcp_and_udp_in_both_families() {
    lab::test(|| check_dual(Maps::new(Services::dual()).clients(), "unreachable"));
}

#[test]
fn sctp_is_translated_as_tcp() {
    lab::test(|| {
        let maps = Maps::new(Services::dual().instead_of_udp("SCTP"));
        maps.cluster.pod1.serve_sctp(5353);
        maps.cluster.pod_b1.serve_sctp(5353);
        let frontends = ["sctp 10.96.1.1:53", "sctp [fd00:10:96::1]:53"].map(String::from);
        let both = ["pod1/client", "podB1/client"];
        check_in(maps.clients(), "pod3", &frontends, &both);
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
        let mut maps = Maps::new(services(&[POD1, POD_B1]));
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
        maps.rules.program(services(&[POD1, POD2, POD_B1]));
        assert_eq!(ask(&maps), first);
        maps.rules.restart();
        assert_eq!(ask(&maps), first);
        // A removed endpoint loses its clients, and no others.
        maps.rules.program(services(&[POD2, POD_B1]));
        let Rules { client, table, .. } = &mut maps.rules;
        table.forget_removed(client).unwrap();
        for (before, after) in first.iter().zip(ask(&maps)) {
            let is_removed = before.starts_with("pod1/");
            assert!(is_removed != (*before == after), "{before}, then {after}");
            assert!(!after.starts_with("pod1/"), "{after}");
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

#[test]
fn schedulers_share_connections_by_weight_and_by_client() {
    lab::test(|| {
        let mut maps = Maps::new(Services::dual());
        for (scheduler, with_port, weights, shares) in [
            ("rr", false, [1, 3], &[HALF][..]),
            ("wrr", false, [1, 3], &[QUARTER]),
            ("wlc", false, [1, 3], &[QUARTER]),
            ("sh", false, [1, 1], &ALL_OR_NONE),
            ("sh", true, [1, 1], &[HALF]),
            ("mh", false, [1, 1], &ALL_OR_NONE),
            ("mh", true, [1, 3], &[QUARTER]),
            ("dh", false, [1, 1], &ALL_OR_NONE),
            ("fo", false, [1, 3], &[NONE]),
        ] {
            let mut desired = maps.rules.desired.clone();
            for plan in desired.frontends.values_mut() {
                let mut profile = Profile::clone(&plan.profile);
                profile.balancing.scheduler = scheduler.into();
                profile.balancing.flags.port = with_port;
                plan.profile = profile.into();
                let weighted = plan.endpoints.iter().zip(weights);
                let weighted = weighted.map(|(it, weight)| SelectedEndpoint { weight, ..*it });
                plan.endpoints = weighted.collect();
            }
            maps.rules.follow(desired);
            for to in ["10.96.1.1:53", "[fd00:10:96::1]:53"] {
                let answers = draws(&maps.cluster.pod3, &[to], DRAWS);
                let of_pod1 = answers.iter().filter(|it| it[0] == "pod1").count();
                let is_fair = shares.iter().any(|share| share.contains(&of_pod1));
                assert!(is_fair, "{scheduler} at {to}: {of_pod1} of {DRAWS}");
            }
        }
    });
}

/// With counters, two Services that a client asks in turn would each always get the same endpoint.
#[test]
fn services_with_as_many_endpoints_do_not_take_turns_together() {
    lab::test(|| {
        let maps = Maps::new(Services::dual());
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
        let mut maps = Maps::new(Services::dual());
        let Maps { cluster, rules } = &mut maps;
        let clients = [
            (&cluster.pod3, "10.96.1.1:53"),
            (&cluster.pod2, "[fd00:10:96::1]:53"),
            (&*cluster.ext, "198.51.100.2:53"),
            (&*cluster.ext2, "[2001:db8:51::1]:53"),
            (&*cluster.peer, "172.18.0.2:30053"),
            (&*cluster.node, "10.96.1.1:53"),
        ];
        let lists: [&[Endpoint]; 4] = [&[POD_B1], &[POD1, POD2], &[POD1], &[POD1, POD2, POD_B1]];
        let change = || {
            for endpoints in lists.iter().cycle().take(CHANGES) {
                let services = Services::dual();
                rules.program(services.edit("web", |web| *web = web.clone().endpoints(endpoints)));
                thread::sleep(lab::patience(Duration::from_millis(5)));
            }
        };
        let tallies = meanwhile(&clients, newcomer, change);
        println!(
            "{} questions",
            tallies.iter().map(|it| it.asked).sum::<usize>()
        );
        for ((_, to), tally) in clients.iter().zip(&tallies) {
            assert!(tally.asked > 20 && tally.lost.is_empty(), "{to}: {tally:?}");
        }
    });
}
