//! The order in which a node that starts is programmed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use proxier::dataplane::fake::{FakeKernel, Fault};
use proxier::manifests;
use proxier::nftables::Table;
use proxier::packets;
use proxier::plan::{Config, NodePortAddresses, ServiceAddresses};
use proxier::state_file::StateFile;
use proxier::sync::{Input, Proxier};

const API_SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec:
  clusterIP: 10.96.255.254
  ports: [{name: https, port: 443, targetPort: 6443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: kubernetes
  namespace: default
  labels: {kubernetes.io/service-name: kubernetes}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [172.18.0.9]}]
---
";

/// What programmed `kernel` for the conformance cluster, as far as it let itself be written to.
fn programmed(mut kernel: FakeKernel, writes: usize) -> Proxier<FakeKernel> {
    for number in writes..1_000 {
        kernel.faults.insert(number, Fault::Refused);
    }
    let config = Config {
        node_name: "node-a".into(),
        scheduler: "rr".parse().unwrap(),
        node_port_addresses: NodePortAddresses::default(),
        service_addresses: ServiceAddresses::Routes,
        drain: Duration::ZERO,
    };
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/cluster.yaml");
    let text = API_SERVICE.to_owned() + &std::fs::read_to_string(cluster).unwrap();
    let options = manifests::Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
    };
    let loaded = manifests::parse(&text, "cluster.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let directory = tempfile::tempdir().unwrap();
    let file = StateFile::new(directory.path().join("state"));
    let mut proxier = Proxier::new(kernel, config, file)
        .unwrap()
        .filtering(packets::Config::default());
    proxier.take(loaded.events, Input::Whole);
    proxier.sync(Duration::from_secs(1)).unwrap();
    proxier
}

/// The addresses that are local, and the rules, after so many writes.
fn after(writes: usize) -> (Vec<IpAddr>, String) {
    let mut proxier = programmed(FakeKernel::default(), writes);
    let kernel = proxier.dataplane();
    let addresses = kernel.state.addresses.keys().copied().collect();
    let rules = kernel.rules.clone().unwrap_or_default();
    (addresses, rules.named("rules").to_string())
}

#[test]
fn the_api_servers_address_is_served_first() {
    let api: IpAddr = [10, 96, 255, 254].into();
    let frontend = "10.96.255.254 . tcp . 443";
    let other = "10.96.1.1 . tcp . 80";
    // Its rules; a virtual server, its destination, the address; the rules of all others.
    let (addresses, rules) = after(1);
    assert_eq!(addresses, [] as [IpAddr; 0]);
    assert!(rules.contains(frontend), "{rules}");
    assert!(!rules.contains(other), "{rules}");
    let (addresses, rules) = after(4);
    assert_eq!(addresses, [api]);
    assert!(!rules.contains(other), "{rules}");
    let (addresses, rules) = after(5);
    assert_eq!(addresses, [api]);
    assert!(rules.contains(frontend) && rules.contains(other), "{rules}");
}

#[test]
fn rules_that_are_there_are_replaced_in_one_step() {
    // Perhaps those of the process before, which others need.
    let kernel = FakeKernel {
        rules: Some(Table::default()),
        ..FakeKernel::default()
    };
    let mut proxier = programmed(kernel, 1);
    let rules = proxier.dataplane().rules.clone().unwrap();
    assert_eq!(&rules, proxier.packets().unwrap().table());
}
