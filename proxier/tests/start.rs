//! The order of the first programming of a node.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use api_server::Manifest;
use nftables::Table;
use proxier::testing::dataplane::fake::{FakeKernel, Fault};
use proxier::testing::dataplane::ipvs::Ipvs;
use proxier::testing::filter::FilterConfig;
use proxier::testing::ledger::LedgerFile;
use proxier::testing::manifests;
use proxier::testing::plan::PlanConfig;
use proxier::testing::sync::Proxier;

/// Returns the Service through which the node reaches the API server, and its endpoint.
fn api_service() -> [Manifest; 2] {
    let service = Manifest::service("kubernetes")
        .cluster_ip("10.96.255.254")
        .port("https", "TCP", 443);
    let slice = Manifest::slice_of("kubernetes")
        .port("https", "TCP", 6443)
        .endpoint("172.18.0.9");
    [service, slice]
}

/// Programs `kernel` for the conformance cluster. The kernel accepts only the first `writes` writes.
fn programmed(mut kernel: FakeKernel, writes: usize) -> Proxier<Ipvs<FakeKernel>> {
    for number in writes..1_000 {
        kernel.faults.insert(number, Fault::Refused);
    }
    let config = PlanConfig {
        node_name: "node-a".into(),
        drain: Duration::ZERO,
        ..PlanConfig::default()
    };
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/cluster.yaml");
    let cluster = std::fs::read_to_string(cluster).unwrap();
    let text = format!("{}---\n{cluster}", Manifest::documents(&api_service()));
    let options = manifests::Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: false,
    };
    let loaded = manifests::parse(&text, "cluster.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let directory = tempfile::tempdir().unwrap();
    let file = LedgerFile::new(directory.path().join("ledger"));
    let mut proxier = Proxier::new(kernel, config, file)
        .unwrap()
        .filtering(FilterConfig::default());
    proxier.receive(loaded.events);
    proxier.sync(Duration::from_secs(1)).unwrap();
    proxier
}

/// Returns the service addresses and the rules of a kernel that accepted `writes` writes.
fn after(writes: usize) -> (Vec<IpAddr>, String) {
    let mut proxier = programmed(FakeKernel::default(), writes);
    let kernel = proxier.kernel();
    let addresses = kernel.state.addresses.keys().collect();
    let rules = kernel.rules.clone().unwrap_or_default();
    (addresses, rules.named("rules").to_string())
}

#[test]
fn the_api_servers_address_is_programmed_first() {
    let api: IpAddr = [10, 96, 255, 254].into();
    // Write 1 sets the rules of all frontends. Writes 2 to 5 add the API server's virtual server,
    // destination, the carrier and the address.
    let (addresses, rules) = after(4);
    assert_eq!(addresses, [] as [IpAddr; 0]);
    assert!(rules.contains("10.96.255.254 . tcp . 443"), "{rules}");
    let (addresses, _) = after(5);
    assert_eq!(addresses, [api]);
}

#[test]
fn existing_rules_are_replaced_in_one_transaction() {
    // Clients rely on the rules of an earlier process until the new ones replace them.
    let kernel = FakeKernel {
        rules: Some(Table::default()),
        ..FakeKernel::default()
    };
    let mut proxier = programmed(kernel, 1);
    let rules = proxier.kernel().rules.clone().unwrap();
    let wanted = proxier.wanted();
    assert_eq!(rules, proxier.filter().unwrap().table(wanted));
}
