//! The plan of manifests, without a kernel.

use std::fmt::Display;
use std::time::Duration;

use proxier::testing::filter::{FilterConfig, LocalMode};
use proxier::testing::manifests::{self, Options};
use proxier::testing::plan::{
    Capabilities, Desired, Machine, NodePortAddresses, PlanConfig, ServiceAddresses, desired,
};
use proxier::testing::store::{Snapshot, Touched};

/// Returns the plan of node `node-a`, whose interfaces have these addresses.
pub(crate) fn planned(manifests: impl Display, addresses: &[&str]) -> Desired {
    let options = Options {
        service_cidr: Vec::new(),
        node_name: "node-a".into(),
        permits_loopback: false,
    };
    let loaded = manifests::parse(&manifests.to_string(), "test.yaml", &options);
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let mut snapshot = Snapshot::default();
    for event in loaded.events {
        snapshot.apply(event, &mut Touched::none());
    }
    let machine = Machine {
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        ..Machine::default()
    };
    let capabilities = Capabilities {
        has_full_affinity: true,
        ..Capabilities::default()
    };
    let config = PlanConfig {
        node_name: "node-a".into(),
        scheduler: "rr".into(),
        node_port_addresses: NodePortAddresses::default(),
        has_localhost_node_ports: false,
        service_addresses: ServiceAddresses::Routes,
        drain: Duration::ZERO,
    };
    desired(&snapshot, &machine, &capabilities, &config).0
}

/// Returns the configuration of rules with the Pod networks of the conformance data.
pub(crate) fn rules() -> FilterConfig {
    let networks = ["10.244.0.0/16", "fd00:244::/32"];
    FilterConfig {
        local_mode: LocalMode::ClusterCidr(networks.map(|it| it.parse().unwrap()).into()),
        ..FilterConfig::default()
    }
}
