//! The order of rules and Ops, what stays while input is missing, and what is learnt of failures.

use std::path::Path;

use super::*;
use crate::dataplane::fake::{FakeKernel, Fault};
use crate::manifests::{self, Options};
use crate::nftables::Table;
use crate::plan::{NodePortAddresses, ServiceAddresses};

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: ranged}
spec:
  type: LoadBalancer
  clusterIP: 10.96.3.1
  loadBalancerSourceRanges: [203.0.113.0/24]
  ports: [{name: dns, port: 53, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.5}]}}
";

const SLICE: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ranged-4, labels: {kubernetes.io/service-name: ranged}}
addressType: IPv4
ports: [{name: dns, port: 53, protocol: UDP}]
endpoints: [{addresses: [10.244.1.2]}]
";

const GUARD: &str = "198.51.100.5 . udp . 53 : jump ranges-udp-198.51.100.5-53";
const FRONTEND: &str = "198.51.100.5 . udp . 53 : goto external";

const REFUSED: &str = "10.96.3.1 . udp . 53 : jump refuse";

type Fake = Proxier<FakeKernel>;

fn told(proxier: &mut Fake, documents: &[&str], input: Input) {
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
    };
    let loaded = manifests::parse(&documents.join("---\n"), "test.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    proxier.take(loaded.events, input);
}

fn proxier(kernel: FakeKernel, state: &Path) -> Fake {
    let config = Config {
        node_name: "node-a".into(),
        scheduler: "rr".parse().unwrap(),
        node_port_addresses: NodePortAddresses::default(),
        service_addresses: ServiceAddresses::Routes,
        drain: Duration::ZERO,
    };
    Proxier::new(kernel, config, StateFile::new(state))
        .unwrap()
        .filtering(packets::Config::default())
}

const START: Duration = Duration::from_secs(1);

/// One that serves everything.
fn serving(state: &Path) -> Fake {
    let mut proxier = proxier(FakeKernel::default(), state);
    told(&mut proxier, &[NODE, SERVICE, SLICE], Input::Whole);
    assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
    let rules = rules(&proxier);
    assert!(rules.contains(GUARD) && rules.contains(FRONTEND), "{rules}");
    proxier
}

fn rules(proxier: &Fake) -> String {
    let rules = proxier.dataplane.rules.clone().unwrap();
    rules.named("t").to_string()
}

/// The rules that the plan makes from scratch.
fn from_scratch(proxier: &Fake) -> Table {
    let mut packets = Packets::new(packets::Config::default());
    let node = proxier.snapshot.node();
    packets.follow(&Changed::default(), proxier.desired(), node, Input::Whole);
    packets.table().clone()
}

/// What is reached without those being kept out who are to be.
#[track_caller]
fn nobody_gets_in(proxier: &Fake) {
    let rules = rules(proxier);
    let state = &proxier.dataplane.state;
    for address in state.addresses.keys() {
        let set = "service-addresses-4";
        let key = crate::nftables::Key::new([(*address).into()]);
        let all = proxier.dataplane.rules.as_ref().unwrap();
        let has = all.sets[set].elements.contains_key(&key);
        assert!(has, "{address} in {rules}");
    }
    let ranged = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Udp,
        address: [198, 51, 100, 5].into(),
        port: 53,
    };
    let is_there = state.virtual_servers.contains_key(&ranged);
    assert_eq!(rules.contains(GUARD), is_there, "{rules}");
}

/// Whatever fails from which write on.
fn all_fail_from(proxier: &mut Fake, write: usize) {
    let kernel = &mut proxier.dataplane;
    let faults = kernel.writes + write..kernel.writes + 100;
    kernel.faults = faults.map(|write| (write, Fault::Refused)).collect();
}

#[track_caller]
fn comes_to_rest(proxier: &mut Fake, mut now: Duration) {
    proxier.dataplane.faults.clear();
    proxier.sync(now).unwrap();
    while let Some(due) = proxier.next_due() {
        now = due;
        proxier.sync(now).unwrap();
    }
    assert_eq!(proxier.dataplane.rules, Some(from_scratch(proxier)));
    assert!(proxier.dataplane.state.virtual_servers.is_empty());
    assert!(proxier.dataplane.state.addresses.is_empty());
}

#[test]
fn a_frontend_that_goes_is_guarded_to_the_last() {
    let directory = tempfile::tempdir().unwrap();
    // Rules, 2 addresses, 2 virtual servers, rules.
    for writes in 0..=6 {
        let mut proxier = serving(&directory.path().join(writes.to_string()));
        told(&mut proxier, &[NODE], Input::Whole);
        all_fail_from(&mut proxier, writes);
        let before = proxier.dataplane.writes;
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.failures().count() == 0, writes == 6);
        assert!(proxier.dataplane.writes - before <= 6);
        let now = rules(&proxier);
        assert_eq!(now.contains(FRONTEND), writes == 0, "{now}");
        if writes < 5 {
            // What loosens comes last, and only for what is gone.
            assert!(now.contains(GUARD), "{now}");
        }
        if writes == 5 {
            assert_eq!(proxier.dataplane.state, Observed::default());
        } else {
            nobody_gets_in(&proxier);
        }
        comes_to_rest(&mut proxier, 2 * START);
    }
}

#[test]
fn one_frontend_that_cannot_go_holds_up_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    told(&mut proxier, &[NODE], Input::Whole);
    // The second of both addresses.
    let write = proxier.dataplane.writes + 2;
    proxier.dataplane.faults.insert(write, Fault::Refused);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1);
    let left: Vec<_> = proxier.dataplane.state.addresses.keys().copied().collect();
    assert_eq!(left.len(), 1);
    nobody_gets_in(&proxier);
    let elements = &proxier.dataplane.rules.as_ref().unwrap().sets["service-addresses-4"].elements;
    assert_eq!(elements.len(), 1);
    comes_to_rest(&mut proxier, 2 * START);
}

#[test]
fn what_went_while_nobody_ran_is_guarded_to_the_last() {
    let directory = tempfile::tempdir().unwrap();
    for writes in 1..=6 {
        let state = directory.path().join(writes.to_string());
        let kernel = serving(&state).dataplane;
        let mut next = proxier(kernel, &state);
        told(&mut next, &[NODE], Input::Whole);
        all_fail_from(&mut next, writes);
        next.sync(START).unwrap();
        if writes < 5 {
            nobody_gets_in(&next);
        }
        comes_to_rest(&mut next, 2 * START);
    }
}

#[test]
fn rounds_that_loosen_nothing_set_rules_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("state"));
    let mut rounds = |documents: &[&str]| {
        let before = proxier.dataplane.rules_generation;
        told(&mut proxier, documents, Input::Whole);
        assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
        assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
        proxier.dataplane.rules_generation - before
    };
    assert_eq!(rounds(&[NODE, SERVICE]), 1);
    assert_eq!(rounds(&[NODE, SERVICE, SLICE]), 2, "served at last");
    let wider = SERVICE.replace("203.0.113.0/24", "203.0.112.0/23");
    assert_eq!(rounds(&[NODE, &wider, SLICE]), 1);
    let open = SERVICE.replace("  loadBalancerSourceRanges: [203.0.113.0/24]\n", "");
    assert_eq!(rounds(&[NODE, &open, SLICE]), 1, "no Op to wait for");
    assert_eq!(rounds(&[NODE, SERVICE, SLICE]), 1);
    assert_eq!(rounds(&[NODE, SERVICE]), 1);
    assert_eq!(rounds(&[NODE]), 2);
}

#[test]
fn rules_stay_while_part_of_the_input_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let moved = NODE.replace("172.18.0.2", "172.18.0.3");
    for (number, partial) in [
        &[NODE][..],
        &[NODE, SERVICE],
        &[NODE, SLICE],
        // Here all rules are made anew.
        &[&moved],
        &[&moved, SERVICE],
    ]
    .into_iter()
    .enumerate()
    {
        let mut proxier = serving(&directory.path().join(number.to_string()));
        let before = proxier.dataplane.clone();
        told(&mut proxier, partial, Input::Partial);
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.ops, []);
        assert_eq!(proxier.dataplane.state, before.state);
        assert_eq!(
            proxier.dataplane.rules, before.rules,
            "without all of {partial:?}"
        );
        told(&mut proxier, &[NODE], Input::Whole);
        comes_to_rest(&mut proxier, START);
    }
}

#[test]
fn what_is_known_counts_while_other_input_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    let narrower = SERVICE.replace("203.0.113.0/24", "203.0.113.7/32");
    told(&mut proxier, &[NODE, &narrower], Input::Partial);
    proxier.sync(START).unwrap();
    let then = rules(&proxier);
    assert!(
        then.contains("ip saddr 203.0.113.7 return") && !then.contains(REFUSED),
        "{then}"
    );
    told(&mut proxier, &[NODE, &narrower, SLICE], Input::Whole);
    proxier.sync(START).unwrap();
    assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
    assert_eq!(rules(&proxier), then);
}

/// A process that takes over what one that served everything left.
fn successor(state: &Path, documents: &[&str], input: Input) -> Fake {
    let kernel = serving(state).dataplane;
    let mut next = proxier(kernel, state);
    told(&mut next, documents, input);
    next
}

#[test]
fn rules_stay_when_a_process_starts_with_part_of_the_input() {
    let directory = tempfile::tempdir().unwrap();
    let partial = [&[NODE][..], &[NODE, SERVICE], &[NODE, SLICE], &[SERVICE]];
    for (number, partial) in partial.into_iter().enumerate() {
        let state = directory.path().join(number.to_string());
        let mut next = successor(&state, partial, Input::Partial);
        let before = next.dataplane.clone();
        for round in 1..3 {
            assert_eq!(next.resync(round * START).unwrap().ops, []);
            assert_eq!(next.dataplane.state, before.state);
            assert_eq!(next.dataplane.rules, before.rules, "with {partial:?} alone");
        }
        // Another start does no better, and no worse.
        let mut next = proxier(next.dataplane, &state);
        told(&mut next, partial, Input::Partial);
        next.sync(START).unwrap();
        assert_eq!(next.dataplane.rules, before.rules, "with {partial:?} alone");
        told(&mut next, &[NODE, SERVICE, SLICE], Input::Whole);
        assert_eq!(next.sync(START).unwrap().ops, []);
        assert_eq!(next.dataplane.rules, before.rules);
        told(&mut next, &[NODE], Input::Whole);
        comes_to_rest(&mut next, START);
    }
}

#[test]
fn what_is_known_counts_when_a_process_starts_with_part_of_the_input() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let open = SERVICE.replace("  loadBalancerSourceRanges: [203.0.113.0/24]\n", "");
    let mut next = successor(&state, &[NODE, &open, SLICE], Input::Partial);
    next.sync(START).unwrap();
    assert_eq!(next.dataplane.rules, Some(from_scratch(&next)));
    // Nothing of it is taken for all there should be.
    let service = |name: &str, last: u8| {
        let service = open.replace("name: ranged", &format!("name: {name}"));
        let service = service.replace("10.96.3.1", &format!("10.96.3.{last}"));
        service.replace("198.51.100.5", &format!("198.51.100.{last}"))
    };
    let other = service("other", 6);
    told(&mut next, &[NODE, &other], Input::Partial);
    next.sync(START).unwrap();
    let mut last = proxier(next.dataplane, &state);
    told(&mut last, &[NODE, &other], Input::Whole);
    last.sync(START).unwrap();
    assert_eq!(last.dataplane.rules, Some(from_scratch(&last)));
    assert!(!rules(&last).contains(FRONTEND));
}

/// On Linux, nothing can ever be written to this file.
const FULL: &str = "/dev/full";

#[test]
fn what_is_learnt_while_the_state_file_is_full_is_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut proxier = serving(&path);
    let swept = proxier.dataplane.swept.len();
    proxier.state_file = StateFile::new(FULL);
    // The rules change with it, which is to be recorded.
    told(&mut proxier, &[NODE, SERVICE], Input::Whole);
    proxier.sync(START).unwrap_err();
    assert_eq!(proxier.dataplane.swept.len(), swept + 1);
    let back = SLICE.replace("]}]", "]}, {addresses: [10.244.1.3]}]");
    told(&mut proxier, &[NODE, SERVICE, &back], Input::Whole);
    proxier.sync(START).unwrap_err();
    let last = proxier.dataplane.swept.last();
    let strays = last.map(|stale| stale.back().len());
    assert_eq!(strays, Some(1), "it went, and is back");

    proxier.state_file = StateFile::new(&path);
    proxier.sync(START).unwrap();
    assert_eq!(StateFile::new(&path).load().unwrap(), proxier.state);
    assert_eq!(proxier.unwritten, []);
}

#[test]
fn sweeps_that_fail_again_and_again_cost_no_more_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    proxier.dataplane.refuses_sweeps = true;
    for round in 0..50_u8 {
        let other = SLICE.replace("10.244.1.2", &format!("10.244.2.{round}"));
        told(&mut proxier, &[NODE, SERVICE, &other], Input::Whole);
        let applied = proxier.sync(START).unwrap();
        assert!(matches!(applied.flows, Some(Err(_))), "{applied:?}");
        assert_eq!(proxier.unswept.len(), 2, "one for each frontend");
    }
    proxier.dataplane.refuses_sweeps = false;
    let due = proxier.next_due().unwrap();
    let applied = proxier.sync(due).unwrap();
    assert!(matches!(applied.flows, Some(Ok(_))), "{applied:?}");
    assert!(proxier.unswept.is_empty());
}
