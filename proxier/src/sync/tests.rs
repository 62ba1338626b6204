//! The order of rules and Ops, partial input, and the conclusions from failures.

use std::path::Path;

use ipvs_netlink as ipvs;

use super::*;
use crate::dataplane::fake::{FakeKernel, Fault};
use crate::manifests::{self, Options};
use crate::nftables::Table;
use crate::plan::{NodePortAddresses, ServiceAddresses};
use crate::store::Update;

mod failures;
mod node;
mod order;
mod ownership;
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

/// Gives the proxier these documents as its whole input.
fn receive(proxier: &mut Fake, documents: &[&str]) {
    proxier.receive(events(documents));
}

/// Gives the proxier these documents as the readable part of its input.
fn receive_part(proxier: &mut Fake, documents: &[&str]) {
    let part = events(documents).into_iter().map(|event| match event {
        Event::Services(Update::Reset(all)) => Event::Services(Update::Merge(all)),
        Event::EndpointSlices(Update::Reset(all)) => Event::EndpointSlices(Update::Merge(all)),
        other => other,
    });
    proxier.receive(part);
}

fn events(documents: &[&str]) -> Vec<Event> {
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
    };
    let loaded = manifests::parse(&documents.join("---\n"), "test.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    loaded.events
}

fn proxier(kernel: FakeKernel, ledger: &Path) -> Fake {
    let config = PlanConfig {
        node_name: "node-a".into(),
        scheduler: "rr".parse().unwrap(),
        node_port_addresses: NodePortAddresses::default(),
        service_addresses: ServiceAddresses::Routes,
        drain: Duration::ZERO,
    };
    Proxier::new(kernel, config, LedgerFile::new(ledger))
        .unwrap()
        .filtering(FilterConfig::default())
}

const START: Duration = Duration::from_secs(1);

/// Returns a proxier that serves everything.
fn serving(ledger: &Path) -> Fake {
    let mut proxier = proxier(FakeKernel::default(), ledger);
    receive(&mut proxier, &[NODE, SERVICE, SLICE]);
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
    let mut filter = Filter::new(FilterConfig::default());
    let mut planner = Planner::new(proxier.planner.config().clone());
    let snapshot = proxier.snapshot();
    let changed = planner.update(snapshot, proxier.machine(), Touched::All);
    filter.follow(planner.desired(), &changed, snapshot.node());
    filter.table().clone()
}

/// Asserts that every service address is rejected where no frontend is, and that the frontend with
/// source ranges has its guard exactly as long as its virtual server.
#[track_caller]
fn assert_guarded(proxier: &Fake) {
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
    let exists = state.virtual_servers.contains_key(&ranged);
    assert_eq!(rules.contains(GUARD), exists, "{rules}");
}

/// Lets every write fail from this one on.
fn fail_from(proxier: &mut Fake, write: usize) {
    let kernel = &mut proxier.dataplane;
    let faults = kernel.writes + write..kernel.writes + 100;
    kernel.faults = faults.map(|write| (write, Fault::Refused)).collect();
}

/// Asserts that rounds without faults remove everything.
#[track_caller]
fn assert_removed(proxier: &mut Fake, mut now: Duration) {
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
