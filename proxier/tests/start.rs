//! The order of the first programming of a node.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use proxier::dataplane::fake::{FakeKernel, Fault};
use proxier::filter::FilterConfig;
use proxier::ledger::LedgerFile;
use proxier::manifests;
use proxier::nftables::Table;
use proxier::plan::{NodePortAddresses, PlanConfig, ServiceAddresses};
use proxier::sync::Proxier;

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

/// Returns a proxier that programmed `kernel` for the conformance cluster, of which only the first
/// `writes` writes succeeded.
fn programmed(mut kernel: FakeKernel, writes: usize) -> Proxier<FakeKernel> {
    for number in writes..1_000 {
        kernel.faults.insert(number, Fault::Refused);
    }
    let config = PlanConfig {
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
    let file = LedgerFile::new(directory.path().join("state"));
    let mut proxier = Proxier::new(kernel, config, file)
        .unwrap()
        .filtering(FilterConfig::default());
    proxier.receive(loaded.events);
    proxier.sync(Duration::from_secs(1)).unwrap();
    proxier
}

/// Returns the local addresses and the rules after so many writes.
fn after(writes: usize) -> (Vec<IpAddr>, String) {
    let mut proxier = programmed(FakeKernel::default(), writes);
    let kernel = proxier.dataplane();
    let addresses = kernel.state.addresses.keys().copied().collect();
    let rules = kernel.rules.clone().unwrap_or_default();
    (addresses, rules.named("rules").to_string())
}

#[test]
fn the_api_servers_address_is_programmed_first() {
    let api: IpAddr = [10, 96, 255, 254].into();
    // The rules of all frontends; the API server's virtual server, destination and address.
    let (addresses, rules) = after(3);
    assert_eq!(addresses, [] as [IpAddr; 0]);
    assert!(rules.contains("10.96.255.254 . tcp . 443"), "{rules}");
    let (addresses, _) = after(4);
    assert_eq!(addresses, [api]);
}

#[test]
fn existing_rules_are_replaced_in_one_transaction() {
    // An earlier process may have left them, and clients rely on them.
    let kernel = FakeKernel {
        rules: Some(Table::default()),
        ..FakeKernel::default()
    };
    let mut proxier = programmed(kernel, 1);
    let rules = proxier.dataplane().rules.clone().unwrap();
    assert_eq!(&rules, proxier.filter().unwrap().table());
}
