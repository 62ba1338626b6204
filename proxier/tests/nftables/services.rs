//! The table of the dataplane of nf_tables alone, for the conformance cluster.

use std::fmt::Display;
use std::time::Duration;

use ::nftables::{RulesClient, Table};
use proxier::testing::dataplane::nftables::{TABLE, table};
use proxier::testing::filter::{FilterConfig, LocalMode};
use proxier::testing::manifests::{self, Options};
use proxier::testing::plan::{Capabilities, Desired, Machine, PlanConfig, desired};
use proxier::testing::store::{Snapshot, Touched};

use crate::{assert_same, lines, nft};

const CLUSTER: &str = include_str!("../conformance/cluster.yaml");

/// The addresses of the node.
const ADDRESSES: [&str; 2] = ["172.18.0.2", "fd00:172:18::2"];

/// The most slots whose picks the golden file shows. The picks of more slots are the same but for the number.
const SHOWN: u32 = 3;

/// Returns the plan of node `node-a`, whose interfaces have these addresses.
fn planned(manifests: impl Display, addresses: &[&str]) -> Desired {
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
        drain: Duration::ZERO,
        ..PlanConfig::default()
    };
    desired(&snapshot, &machine, &capabilities, &config).0
}

/// Returns the configuration of rules with the Pod networks of the conformance data.
pub(super) fn rules() -> FilterConfig {
    let networks = ["10.244.0.0/16", "fd00:244::/32"];
    FilterConfig {
        local_mode: LocalMode::ClusterCidr(networks.map(|it| it.parse().unwrap()).into()),
        ..FilterConfig::default()
    }
}

fn conformance() -> Table {
    table(&planned(CLUSTER, &ADDRESSES), &rules(), None)
}

#[test]
fn the_table_of_the_conformance_cluster_in_nft_syntax() {
    let mut table = conformance();
    table.chains.retain(|name, _| {
        let slots = name.strip_prefix("random-");
        let slots = slots.and_then(|slots| slots.parse::<u32>().ok());
        slots.is_none_or(|slots| slots <= SHOWN)
    });
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false,
        snapshot_path => "." }, {
        insta::assert_snapshot!("services", table.named(TABLE).to_string());
    });
}

#[test]
fn nft_lists_the_table_as_we_print_it_and_it_is_not_written_again() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        let table = conformance();
        client.restore(&table).unwrap();
        let listed = nft(&["list", "table", "inet", TABLE], "").unwrap();
        assert_same(&lines(&listed), &lines(&table.named(TABLE).to_string()));
        nft(&["-j", "list", "ruleset"], "").unwrap();
        let generation = client.read_generation().unwrap();
        client.restore(&table).unwrap();
        assert_eq!(client.read_generation().unwrap(), generation);
    });
}
