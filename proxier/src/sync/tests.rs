//! The order of rules and Ops, what stays while input is missing, and what is learnt of failures.

use std::path::Path;

use super::*;
use crate::dataplane::fake::{FakeKernel, Fault};
use crate::manifests::{self, Options};
use crate::nftables::Table;
use crate::plan::{NodePortAddresses, ServiceAddresses};

mod failures;
mod order;
mod partial;

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
    let (desired, machine) = (proxier.desired(), proxier.machine());
    packets.follow(&Changed::default(), desired, node, machine, Input::Whole);
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
