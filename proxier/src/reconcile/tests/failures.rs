//! Rounds after a refused write, an unwritable ledger, or a change by another program.

use super::*;

#[test]
fn an_unwritable_ledger_delays_no_service_and_loses_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger");
    let blocked = directory.path().join("blocked");
    std::fs::write(&blocked, "not a folder").unwrap();
    let mut proxier = serving(&path);
    let swept = proxier.dataplane.kernel.swept.len();
    proxier
        .dataplane
        .ledger
        .move_to(LedgerFile::new(blocked.join("ledger")));
    let is_recorded = |applied: &Applied<Changes>| applied.unrecorded.is_none();

    // The packet rules change too, and their fingerprint is a record of the ledger.
    receive(&mut proxier, &[node(), service()]);
    assert!(!is_recorded(&proxier.sync(START).unwrap()));
    assert_eq!(proxier.dataplane.kernel.swept.len(), swept + 1);

    let endpoints = slice(&["10.244.1.2", "10.244.1.3"]);
    receive(&mut proxier, &[node(), service(), endpoints]);
    assert!(!is_recorded(&proxier.sync(START).unwrap()));
    let last = proxier.dataplane.kernel.swept.last();
    let returned = last.map(|stale| stale.returned().len());
    assert_eq!(returned, Some(1), "10.244.1.2 was removed and is back");

    let other = open_service("other", "10.96.3.9", "198.51.100.9").source_range("203.0.113.0/24");
    let [node, service, slice] = whole_cluster();
    receive(&mut proxier, &[node, service, slice, other]);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(
        applied.failures().count(),
        1,
        "only the ledger fails: {applied:?}"
    );
    assert_eq!(proxier.dataplane.kernel.state.virtual_servers.len(), 4);

    std::fs::remove_file(&blocked).unwrap();
    let due = proxier.next_due().unwrap();
    assert!(is_recorded(&proxier.sync(due).unwrap()));
    assert_eq!(proxier.ledger().next_due(), None);
    let written = Ledger::open(LedgerFile::new(blocked.join("ledger"))).unwrap();
    assert_eq!(written.owned(), proxier.ledger().owned());
    assert_eq!(written.rules(), proxier.ledger().rules());
}

#[test]
fn failing_sweeps_do_not_accumulate() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    proxier.dataplane.kernel.refuses_sweeps = true;
    for round in 0..50_u8 {
        let endpoint = format!("10.244.2.{round}");
        receive(&mut proxier, &[node(), service(), slice(&[&endpoint])]);
        let applied = proxier.sync(START).unwrap();
        assert!(matches!(applied.flows, Some(Err(_))), "{applied:?}");
        assert_eq!(proxier.dataplane.unswept(), 2, "one for each frontend");
    }
    proxier.dataplane.kernel.refuses_sweeps = false;
    let due = proxier.next_due().unwrap();
    let applied = proxier.sync(due).unwrap();
    assert!(matches!(applied.flows, Some(Ok(_))), "{applied:?}");
    assert_eq!(proxier.dataplane.unswept(), 0);
}

#[test]
fn a_resync_repairs_rules_that_another_program_changed() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let kernel = &mut proxier.dataplane.kernel;
    let rules = kernel.rules.as_mut().unwrap();
    let sets = rules.sets.values_mut();
    sets.for_each(|set| *set = set.without_elements());
    kernel.rules_generation += 1;
    proxier.resync(START).unwrap();
    assert_eq!(
        proxier.dataplane.kernel.rules,
        Some(rules_from_scratch(&proxier))
    );
    let writes = proxier.dataplane.kernel.writes;
    proxier.resync(START).unwrap();
    assert_eq!(
        proxier.dataplane.kernel.writes, writes,
        "the rules were read and are equal"
    );
}

#[test]
fn a_frontend_with_source_ranges_waits_for_its_rules() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = FakeKernel::default();
    // The address is local already, so only the rules keep clients out.
    kernel.machine.addresses.insert([198, 51, 100, 5].into());
    kernel.rules = Some(Table::default());
    kernel.faults.insert(0, Fault::Refused);
    let mut proxier = proxier(kernel, &directory.path().join("ledger"));
    receive(&mut proxier, &whole_cluster());
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1, "only the rules fail");
    let has_virtual_server = |proxier: &Fake| {
        let mut keys = proxier.dataplane.kernel.state.virtual_servers.keys();
        keys.any(|key| key.to_string() == "UDP 198.51.100.5:53")
    };
    assert!(!has_virtual_server(&proxier));
    let due = proxier.next_due().unwrap();
    assert_eq!(proxier.sync(due).unwrap().failures().count(), 0);
    assert!(has_virtual_server(&proxier));
    assert_eq!(
        proxier.dataplane.kernel.rules,
        Some(rules_from_scratch(&proxier))
    );
}

#[test]
fn a_failing_read_delays_no_other_virtual_server_until_the_next_resync() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    // All Ops fail, so all virtual servers are read again at the same moment.
    refuse_after(&mut proxier, 1);
    receive(&mut proxier, &whole_cluster());
    assert!(proxier.sync(START).unwrap().failures().count() > 0);
    assert_eq!(proxier.dataplane.kernel.state.virtual_servers.len(), 0);
    proxier.dataplane.kernel.faults.clear();

    proxier.dataplane.kernel.failing_reads = 1;
    let due = proxier.next_due().unwrap();
    proxier.sync(due).unwrap_err();
    // The daemon tries again after a second.
    proxier.sync(due + Duration::from_secs(1)).unwrap();
    assert_eq!(proxier.dataplane.kernel.state.virtual_servers.len(), 2);
    assert_eq!(proxier.dataplane.kernel.state.addresses.len(), 2);
}
