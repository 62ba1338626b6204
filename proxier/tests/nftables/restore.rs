//! Repair of our table after changes by other programs.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;

use nftables::{Command, Element, Key, RulesClient, Table, Value};

use super::rules::{everything, modes};
use crate::{TABLE, assert_same, lines, list, nft};

/// Returns the table as nft lists it, and the line with its handle. A new table has a new handle.
fn listed() -> (Vec<String>, String) {
    let text = list();
    let with_handles = nft(&["-a", "list", "table", "inet", TABLE], "").unwrap();
    (
        lines(&text),
        with_handles.lines().next().unwrap().to_owned(),
    )
}

#[test]
fn an_unchanged_table_is_not_written() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
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
        // Without the table of family arp, and with it again.
        let mut table = everything(modes()[0].clone());
        for arp in [None, table.arp.take()] {
            table.arp = arp;
            client.restore(&table).unwrap();
            let tables = nft(&["list", "tables"], "").unwrap();
            assert_eq!(tables.contains("table arp"), table.arp.is_some());
        }
        client.delete().unwrap();
        assert_eq!(nft(&["list", "ruleset"], "").unwrap(), "");
        client.restore(&Table::default()).unwrap();
        assert!(client.exists().unwrap());
    });
}

/// Changes of rules, elements and plain chains, as commands of nft.
const UNDONE_IN_PLACE: [&str; 20] = [
    "flush chain inet ipvs-proxier shield-output",
    "flush chain inet ipvs-proxier input",
    "add rule inet ipvs-proxier input counter",
    "insert rule inet ipvs-proxier cluster-ip drop",
    "add rule inet ipvs-proxier leaving jump external",
    "flush chain inet ipvs-proxier input
     flush chain inet ipvs-proxier output",
    "flush table inet ipvs-proxier",
    "flush map inet ipvs-proxier external-4",
    "flush set inet ipvs-proxier frontends-4",
    "flush set inet ipvs-proxier service-addresses-6",
    "add element inet ipvs-proxier service-addresses-4 { 192.0.2.1 }",
    "delete element inet ipvs-proxier external-4 { 172.18.0.2 . tcp . 30080 }
     add element inet ipvs-proxier external-4 { 172.18.0.2 . tcp . 30080 : accept }",
    "add chain inet ipvs-proxier more { accept; }",
    "add chain inet ipvs-proxier more
     add rule inet ipvs-proxier more accept
     add rule inet ipvs-proxier input jump more",
    "delete table arp ipvs-proxier",
    "flush table arp ipvs-proxier",
    "flush set arp ipvs-proxier service-addresses",
    "add element arp ipvs-proxier service-addresses { 192.0.2.1 }",
    "delete element arp ipvs-proxier senders { eth0 }",
    "add element arp ipvs-proxier senders { eth9 : drop }",
];

/// Changes that add what our table never has: a hook, a policy, a set, a flag, a key of another type.
const UNDONE_BY_REPLACEMENT: [&str; 9] = [
    "add element inet ipvs-proxier external-4 { 10.96.0.1 . icmp . 1 : accept }",
    "add chain inet ipvs-proxier more { type filter hook input priority 7; }",
    "chain inet ipvs-proxier input { policy drop; }",
    "add set inet ipvs-proxier more { type ipv4_addr; }",
    "add table inet ipvs-proxier { flags dormant; }",
    "delete table inet ipvs-proxier",
    "chain arp ipvs-proxier input { policy drop; }",
    "add set arp ipvs-proxier more { type ipv4_addr; }",
    "add table arp ipvs-proxier { flags dormant; }",
];

#[test]
fn changes_of_rules_and_elements_are_undone_in_place() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        let table = everything(modes()[0].clone());
        client.replace(&table).unwrap();
        let before = listed();
        for commands in UNDONE_IN_PLACE {
            nft(&["-f", "-"], commands).unwrap();
            client.restore(&table).unwrap();
            assert_eq!(listed(), before, "{commands}");
        }
    });
}

#[test]
fn changes_of_the_structure_are_undone_with_a_new_table() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
        let table = everything(modes()[0].clone());
        client.replace(&table).unwrap();
        for commands in UNDONE_BY_REPLACEMENT {
            let (before, handle) = listed();
            nft(&["-f", "-"], commands).unwrap();
            client.restore(&table).unwrap();
            let (after, handle_after) = listed();
            assert_eq!(after, before, "{commands}");
            assert_ne!(handle_after, handle, "{commands}");
        }
    });
}

#[test]
fn a_table_that_nft_saved_and_restored_is_recognised() {
    lab::test(|| {
        let mut client = RulesClient::open(TABLE).unwrap();
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

/// Encoding takes longer than the pause between two transactions of the other program, so none of ours is the first.
#[test]
fn a_large_table_is_written_while_another_program_changes_its_own_all_the_time() {
    lab::test(|| {
        let mut table = everything(modes()[0].clone());
        let mut ports = table.sets["health-check-ports"].without_elements();
        let keys = (1..=u16::MAX).map(|port| Key::new([Value::Port(port)]));
        let elements: Vec<Element> = keys.map(|key| Element { key, verdict: None }).collect();
        let (some, others) = elements.split_at(20_000);
        some.iter().for_each(|it| ports.insert(it.clone()));
        let name = ports.name.clone();
        table.add_set(ports);
        let others: Vec<Command> = (others.iter().take(20_000))
            .map(|it| Command::AddElement(name.clone(), it.clone()))
            .collect();
        let mut client = RulesClient::open(TABLE).unwrap();
        let mut other = RulesClient::open("another").unwrap();
        let namespace = lab::net::node("here");
        let is_over = AtomicBool::new(false);
        let (started, has_started) = channel();
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                namespace.run(|| {
                    while !is_over.load(Relaxed) {
                        other.replace(&Table::default()).unwrap();
                        _ = started.send(());
                    }
                });
            });
            has_started.recv().unwrap();
            let replaced = client.replace(&table);
            let changed = client.apply(&others);
            is_over.store(true, Relaxed);
            busy.join().unwrap();
            replaced.unwrap();
            changed.unwrap();
        });
        // What the other program did meanwhile is unknown, also after a change that no other one precedes. So the table is
        // read back, and nothing differs.
        assert_eq!(client.generation(), None);
        client.apply(&others[..1]).unwrap();
        assert_eq!(client.generation(), None);
        for change in &others {
            table.apply(change);
        }
        assert_eq!(client.difference(&table).unwrap(), Some(Vec::new()));
    });
}
