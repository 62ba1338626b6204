//! The conclusions from failures, and from changes by other programs.

use super::*;

#[test]
fn records_survive_while_the_ledger_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let blocked = directory.path().join("blocked");
    std::fs::write(&blocked, "not a folder").unwrap();
    let mut proxier = serving(&path);
    let swept = proxier.dataplane.swept.len();
    proxier
        .ledger
        .move_to(LedgerFile::new(blocked.join("ledger")));
    // The rules change too, which is a record.
    receive(&mut proxier, &[NODE, SERVICE]);
    let is_recorded = |applied: &Applied| applied.unrecorded.is_none();
    assert!(!is_recorded(&proxier.sync(START).unwrap()));
    assert_eq!(proxier.dataplane.swept.len(), swept + 1);
    let back = SLICE.replace("]}]", "]}, {addresses: [10.244.1.3]}]");
    receive(&mut proxier, &[NODE, SERVICE, &back]);
    assert!(!is_recorded(&proxier.sync(START).unwrap()));
    let last = proxier.dataplane.swept.last();
    let strays = last.map(|stale| stale.returned().len());
    assert_eq!(strays, Some(1), "removed, and back");

    // A new Service does not wait for the ledger.
    let other = SERVICE.replace("name: ranged", "name: other");
    let other = other.replace("3.1", "3.9").replace("51.100.5", "51.100.9");
    receive(&mut proxier, &[NODE, SERVICE, SLICE, &other]);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1, "{applied:?}");
    assert_eq!(proxier.dataplane.state.virtual_servers.len(), 4);
    std::fs::remove_file(&blocked).unwrap();
    let due = proxier.next_due().unwrap();
    assert!(is_recorded(&proxier.sync(due).unwrap()));
    assert_eq!(proxier.ledger.next_due(), None);
    let written = Ledger::open(LedgerFile::new(blocked.join("ledger"))).unwrap();
    assert_eq!(written.owned(), proxier.ledger.owned());
    assert_eq!(written.rules(), proxier.ledger.rules());
}

#[test]
fn failing_sweeps_do_not_accumulate() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    proxier.dataplane.refuses_sweeps = true;
    for round in 0..50_u8 {
        let other = SLICE.replace("10.244.1.2", &format!("10.244.2.{round}"));
        receive(&mut proxier, &[NODE, SERVICE, &other]);
        let applied = proxier.sync(START).unwrap();
        assert!(matches!(applied.flows, Some(Err(_))), "{applied:?}");
        assert_eq!(proxier.flows.unswept(), 2, "one for each frontend");
    }
    proxier.dataplane.refuses_sweeps = false;
    let due = proxier.next_due().unwrap();
    let applied = proxier.sync(due).unwrap();
    assert!(matches!(applied.flows, Some(Ok(_))), "{applied:?}");
    assert_eq!(proxier.flows.unswept(), 0);
}

#[test]
fn a_resync_finds_rules_that_another_program_changed() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let kernel = &mut proxier.dataplane;
    let rules = kernel.rules.as_mut().unwrap();
    rules.sets.values_mut().for_each(|set| set.elements.clear());
    kernel.rules_generation += 1;
    proxier.resync(START).unwrap();
    assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
    let writes = proxier.dataplane.writes;
    proxier.resync(START).unwrap();
    assert_eq!(
        proxier.dataplane.writes, writes,
        "the rules were read and are equal"
    );
}

#[test]
fn a_frontend_with_source_ranges_waits_for_its_rules() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert([198, 51, 100, 5].into());
    kernel.rules = Some(Table::default());
    kernel.faults.insert(0, Fault::Refused);
    let mut proxier = proxier(kernel, &directory.path().join("ledger"));
    receive(&mut proxier, &[NODE, SERVICE, SLICE]);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1, "the rules");
    let serves = |proxier: &Fake| {
        let mut keys = proxier.dataplane.state.virtual_servers.keys();
        keys.any(|key| key.to_string() == "UDP 198.51.100.5:53")
    };
    assert!(!serves(&proxier));
    let due = proxier.next_due().unwrap();
    assert_eq!(proxier.sync(due).unwrap().failures().count(), 0);
    assert!(serves(&proxier));
    assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
}

#[test]
fn a_failing_read_delays_no_other_virtual_server_until_the_next_resync() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    // All Ops fail, so all virtual servers are read again at the same moment.
    fail_from(&mut proxier, 1);
    receive(&mut proxier, &[NODE, SERVICE, SLICE]);
    assert!(proxier.sync(START).unwrap().failures().count() > 0);
    assert_eq!(proxier.dataplane.state.virtual_servers.len(), 0);
    proxier.dataplane.faults.clear();

    proxier.dataplane.failing_reads = 1;
    let due = proxier.next_due().unwrap();
    proxier.sync(due).unwrap_err();
    // The daemon tries again after a second.
    proxier.sync(due + Duration::from_secs(1)).unwrap();
    assert_eq!(proxier.dataplane.state.virtual_servers.len(), 2);
    assert_eq!(proxier.dataplane.state.addresses.len(), 2);
}
