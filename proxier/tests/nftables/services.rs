//! The table of the dataplane of nf_tables alone, for the conformance cluster.

use ::nftables::{RulesClient, Table};
use proxier::testing::dataplane::nftables::table;

use crate::desired::{planned, rules};
use crate::{assert_same, lines, nft};

const CLUSTER: &str = include_str!("../conformance/cluster.yaml");

const NAME: &str = "ipvs-proxier";

/// The addresses of the node.
const ADDRESSES: [&str; 2] = ["172.18.0.2", "fd00:172:18::2"];

/// The most slots whose picks the golden file shows. The picks of more slots are the same but for the number.
const SHOWN: u32 = 3;

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
        insta::assert_snapshot!("services", table.named(NAME).to_string());
    });
}

#[test]
fn nft_lists_the_table_as_we_print_it_and_it_is_not_written_again() {
    lab::test(|| {
        let mut client = RulesClient::open(NAME).unwrap();
        let table = conformance();
        client.restore(&table).unwrap();
        let listed = nft(&["list", "table", "inet", NAME], "").unwrap();
        assert_same(&lines(&listed), &lines(&table.named(NAME).to_string()));
        nft(&["-j", "list", "ruleset"], "").unwrap();
        let generation = client.read_generation().unwrap();
        client.restore(&table).unwrap();
        assert_eq!(client.read_generation().unwrap(), generation);
    });
}
