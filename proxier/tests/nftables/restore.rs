//! Restoring our table after changes by other programs.

use proxier::nftables::{Client, Table};

use crate::{TABLE, assert_same, everything, lines, modes, nft};

/// Returns the table as nft lists it, and the line with its handle. A new table has a new handle.
fn listed() -> (Vec<String>, String) {
    let text = nft(&["list", "table", "inet", TABLE], "").unwrap();
    let numbered = nft(&["-a", "list", "table", "inet", TABLE], "").unwrap();
    (lines(&text), numbered.lines().next().unwrap().to_owned())
}

#[test]
fn an_unchanged_table_is_not_written() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        for mode in modes() {
            let table = everything(mode);
            client.replace(&table).unwrap();
            let generation = client.read_generation().unwrap();
            client.restore(&table).unwrap();
            assert_eq!(client.read_generation().unwrap(), generation);
            assert_eq!(client.generation(), Some(generation));
        }
        // From one mode to the next, and from a missing table.
        for mode in modes() {
            let table = everything(mode);
            client.restore(&table).unwrap();
            assert_same(&listed().0, &lines(&table.named(TABLE).to_string()));
        }
        client.delete().unwrap();
        client.restore(&Table::default()).unwrap();
        assert!(client.exists().unwrap());
    });
}

/// Changes by another program, each with whether the table has to be replaced after it.
const TAMPERING: [(&str, bool); 18] = [
    ("flush chain inet T input", false),
    ("add rule inet T input counter", false),
    ("insert rule inet T cluster-ip drop", false),
    ("add rule inet T leaving jump external", false),
    ("flush chain inet T input; flush chain inet T output", false),
    ("flush table inet T", false),
    ("flush map inet T frontends-4", false),
    ("flush set inet T service-addresses-6", false),
    (
        "add element inet T service-addresses-4 { 192.0.2.1 }",
        false,
    ),
    (
        "delete element inet T frontends-4 { 10.96.0.1 . tcp . 443 }; \
         add element inet T frontends-4 { 10.96.0.1 . tcp . 443 : accept }",
        false,
    ),
    (
        "add element inet T frontends-4 { 10.96.0.1 . icmp . 1 : accept }",
        true,
    ),
    ("add chain inet T more { accept; }", false),
    (
        "add chain inet T more; add rule inet T more accept; add rule inet T input jump more",
        false,
    ),
    (
        "add chain inet T more { type filter hook input priority 7; }",
        true,
    ),
    ("chain inet T input { policy drop; }", true),
    ("add set inet T more { type ipv4_addr; }", true),
    ("add table inet T { flags dormant; }", true),
    ("delete table inet T", true),
];

#[test]
fn changes_by_other_programs_are_undone() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        let table = everything(modes()[0].clone());
        client.replace(&table).unwrap();
        for (commands, is_replaced) in TAMPERING {
            let (before, number) = listed();
            let commands = commands.replace("inet T", &format!("inet {TABLE}"));
            let commands = commands.replace("; ", "\n").replace(";\n}", "; }");
            nft(&["-f", "-"], &commands).unwrap();
            client.restore(&table).unwrap();
            let (after, number_after) = listed();
            assert_eq!(after, before, "{commands}");
            assert_eq!(number_after != number, is_replaced, "{commands}");
        }
    });
}

#[test]
fn a_table_that_nft_saved_and_restored_is_recognised() {
    lab::test(|| {
        let mut client = Client::open(TABLE).unwrap();
        let table = everything(modes()[0].clone());
        client.replace(&table).unwrap();
        let saved = nft(&["list", "ruleset"], "").unwrap();
        nft(&["-f", "-"], &format!("flush ruleset\n{saved}")).unwrap();
        client.restore(&table).unwrap();
        assert_same(&listed().0, &lines(&table.named(TABLE).to_string()));
        let generation = client.read_generation().unwrap();
        client.restore(&table).unwrap();
        assert_eq!(client.read_generation().unwrap(), generation);
    });
}
