//! Tests of rounds on the in-memory kernel.

use std::net::IpAddr;
use std::path::Path;

use api_server::Manifest;
use ipvs_netlink as ipvs;

use super::*;
use crate::cluster::store::Update;
use crate::dataplane::Applied;
use crate::dataplane::ipvs::fake::{FakeKernel, Fault};
use crate::dataplane::ipvs::{Changes, MarkChanges};
use crate::sources::manifests::{self, Options};
use nftables::{Key, Table};

mod failures;
mod families;
mod marks;
mod missing_rules;
mod node;
mod order;
mod ownership;
mod partial;
mod problems;
mod resync;
mod retire;
mod schedulers;

/// The rule that sends new connections of the load balancer's frontend to its source ranges.
const GUARD: &str = "198.51.100.5 . udp . 53 : jump ranges-udp-198.51.100.5-53";
/// The rule that accepts connections of that frontend.
const FRONTEND: &str = "198.51.100.5 . udp . 53 : goto external";

/// The rule that rejects connections to the cluster IP while the Service has no endpoint.
const REJECTED: &str = "10.96.3.1 . udp . 53 : jump refuse";

type Fake = Proxier<Ipvs<FakeKernel>>;

fn node() -> Manifest {
    Manifest::node("node-a").address("172.18.0.2")
}

/// Returns a Service that has a cluster IP and a load balancer's address, but no source ranges.
fn open_service(name: &str, cluster_ip: &str, ingress: &str) -> Manifest {
    Manifest::service(name)
        .of_type("LoadBalancer")
        .cluster_ip(cluster_ip)
        .ingress(ingress)
        .port("dns", "UDP", 53)
}

/// Returns the Service `ranged`, whose load balancer admits only the clients in `range`.
fn service_for(range: &str) -> Manifest {
    open_service("ranged", "10.96.3.1", "198.51.100.5").source_range(range)
}

fn service() -> Manifest {
    service_for("203.0.113.0/24")
}

/// Returns every object of the cluster.
fn whole_cluster() -> [Manifest; 3] {
    [node(), service(), slice(&["10.244.1.2"])]
}

/// Returns the EndpointSlice of the Service `ranged`.
fn slice(endpoints: &[&str]) -> Manifest {
    let slice = Manifest::slice_of("ranged").port("dns", "UDP", 53);
    let addresses = endpoints.iter();
    addresses.fold(slice, |slice, address| slice.endpoint(address))
}

/// Replaces the whole input of the proxier.
fn receive(proxier: &mut Fake, manifests: &[Manifest]) {
    proxier.receive(events(manifests));
}

/// Applies `manifests` as the readable part of an input.
fn receive_part(proxier: &mut Fake, manifests: &[Manifest]) {
    let part = events(manifests).into_iter().map(|event| match event {
        Event::Services(Update::Reset(all)) => Event::Services(Update::Merge(all)),
        Event::EndpointSlices(Update::Reset(all)) => Event::EndpointSlices(Update::Merge(all)),
        other => other,
    });
    proxier.receive(part);
}

fn events(manifests: &[Manifest]) -> Vec<Event> {
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: false,
    };
    let text = Manifest::documents(manifests);
    let loaded = manifests::parse(&text, "test.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    loaded.events
}

fn proxier(kernel: FakeKernel, ledger: &Path) -> Fake {
    proxier_with(kernel, ledger, "rr", Duration::ZERO)
}

/// Returns a proxier whose default scheduler is `scheduler`.
fn scheduling(kernel: FakeKernel, ledger: &Path, scheduler: &str) -> Fake {
    proxier_with(kernel, ledger, scheduler, Duration::ZERO)
}

/// Returns a proxier with this drain time.
fn draining_proxier(kernel: FakeKernel, ledger: &Path, drain: Duration) -> Fake {
    proxier_with(kernel, ledger, "rr", drain)
}

fn proxier_with(kernel: FakeKernel, ledger: &Path, scheduler: &str, drain: Duration) -> Fake {
    let config = PlanConfig {
        node_name: "node-a".into(),
        scheduler: scheduler.into(),
        drain,
        ..PlanConfig::default()
    };
    Proxier::new(kernel, config, LedgerFile::new(ledger))
        .unwrap()
        .filtering(FilterConfig::default())
}

const START: Duration = Duration::from_secs(1);

/// Returns a proxier that programmed the Service `ranged`.
fn serving(ledger: &Path) -> Fake {
    let mut proxier = proxier(FakeKernel::default(), ledger);
    receive(&mut proxier, &whole_cluster());
    assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
    let rules = rules(&proxier);
    assert!(rules.contains(GUARD) && rules.contains(FRONTEND), "{rules}");
    proxier
}

/// Returns the kernel's packet rules as text.
fn rules(proxier: &Fake) -> String {
    let rules = proxier.dataplane.kernel.rules.clone().unwrap();
    rules.named("t").to_string()
}

/// Returns the packet rules of a new process with the same input.
fn rules_from_scratch(proxier: &Fake) -> Table {
    let mut filter = Filter::new(FilterConfig::default());
    let mut planner = Planner::new(proxier.cluster.planner.config().clone());
    let snapshot = proxier.snapshot();
    let (machine, capabilities) = (proxier.machine(), proxier.dataplane.capabilities());
    let changed = planner.update(snapshot, machine, capabilities, Touched::All);
    let wanted = Wanted::new(planner.desired(), proxier.marks());
    filter.follow(wanted, &changed, &MarkChanges::default(), snapshot.node());
    filter.table(wanted)
}

/// Asserts that rules reject connections to service addresses outside their frontends, and that the guard
/// of the load balancer's frontend exists if and only if its virtual server does.
#[track_caller]
fn assert_guarded(proxier: &Fake) {
    let state = &proxier.dataplane.kernel.state;
    for address in state.addresses.keys() {
        assert!(is_rejected(proxier, address), "{address}");
    }
    let load_balancer = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Udp,
        address: [198, 51, 100, 5].into(),
        port: 53,
    };
    let exists = state.virtual_servers.contains_key(&load_balancer);
    let rules = rules(proxier);
    assert_eq!(rules.contains(GUARD), exists, "{rules}");
}

/// Returns whether rules reject connections to `address` outside its frontends.
fn is_rejected(proxier: &Fake, address: IpAddr) -> bool {
    let rules = proxier.dataplane.kernel.rules.as_ref().unwrap();
    rules.has_element("service-addresses-4", &Key::new([address.into()]))
}

/// Makes the kernel accept `writes` more writes and refuse the 100 after them.
fn refuse_after(proxier: &mut Fake, writes: usize) {
    let kernel = &mut proxier.dataplane.kernel;
    let first = kernel.writes + writes;
    let faults = first..first + 100;
    kernel.faults = faults.map(|write| (write, Fault::Refused)).collect();
}

/// Asserts that further rounds, without faults, delete every object and rule of the Service.
#[track_caller]
fn assert_removed(proxier: &mut Fake, mut now: Duration) {
    proxier.dataplane.kernel.faults.clear();
    proxier.sync(now).unwrap();
    while let Some(due) = proxier.next_due() {
        now = due;
        proxier.sync(now).unwrap();
    }
    assert_eq!(
        proxier.dataplane.kernel.rules,
        Some(rules_from_scratch(proxier))
    );
    assert!(proxier.dataplane.kernel.state.virtual_servers.is_empty());
    assert!(proxier.dataplane.kernel.state.addresses.is_empty());
}
