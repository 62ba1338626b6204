//! What is learnt of failures, and of what others do.

use super::*;

#[test]
fn what_is_learnt_while_the_state_file_cannot_be_written_is_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let blocked = directory.path().join("blocked");
    std::fs::write(&blocked, "no folder").unwrap();
    let mut proxier = serving(&path);
    let swept = proxier.dataplane.swept.len();
    proxier.state_file = StateFile::new(blocked.join("state"));
    // The rules change with it, which is to be recorded.
    told(&mut proxier, &[NODE, SERVICE], Input::Whole);
    let is_recorded = |applied: &Applied| applied.unrecorded.is_none();
    assert!(!is_recorded(&proxier.sync(START).unwrap()));
    assert_eq!(proxier.dataplane.swept.len(), swept + 1);
    let back = SLICE.replace("]}]", "]}, {addresses: [10.244.1.3]}]");
    told(&mut proxier, &[NODE, SERVICE, &back], Input::Whole);
    assert!(!is_recorded(&proxier.sync(START).unwrap()));
    let last = proxier.dataplane.swept.last();
    let strays = last.map(|stale| stale.returned().len());
    assert_eq!(strays, Some(1), "it went, and is back");

    // What is new does not wait for it.
    let other = SERVICE.replace("name: ranged", "name: other");
    let other = other.replace("3.1", "3.9").replace("51.100.5", "51.100.9");
    told(&mut proxier, &[NODE, SERVICE, SLICE, &other], Input::Whole);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1, "{applied:?}");
    assert_eq!(proxier.dataplane.state.virtual_servers.len(), 4);
    std::fs::remove_file(&blocked).unwrap();
    let due = proxier.next_due().unwrap();
    assert!(is_recorded(&proxier.sync(due).unwrap()));
    assert_eq!(proxier.record_again.due(), None);
    let written = StateFile::new(blocked.join("state")).load().unwrap();
    assert_eq!(written, proxier.state);
    assert_eq!(proxier.unwritten, []);
}

#[test]
fn sweeps_that_fail_again_and_again_cost_no_more_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    proxier.dataplane.refuses_sweeps = true;
    for round in 0..50_u8 {
        let other = SLICE.replace("10.244.1.2", &format!("10.244.2.{round}"));
        told(&mut proxier, &[NODE, SERVICE, &other], Input::Whole);
        let applied = proxier.sync(START).unwrap();
        assert!(matches!(applied.flows, Some(Err(_))), "{applied:?}");
        assert_eq!(proxier.unswept.len(), 2, "one for each frontend");
    }
    proxier.dataplane.refuses_sweeps = false;
    let due = proxier.next_due().unwrap();
    let applied = proxier.sync(due).unwrap();
    assert!(matches!(applied.flows, Some(Ok(_))), "{applied:?}");
    assert!(proxier.unswept.is_empty());
}

#[test]
fn what_others_changed_unnoticed_is_found_when_the_machine_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    let kernel = &mut proxier.dataplane;
    let rules = kernel.rules.as_mut().unwrap();
    rules.sets.values_mut().for_each(|set| set.elements.clear());
    kernel.rules_generation += 1;
    proxier.resync(START).unwrap();
    assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
    let writes = proxier.dataplane.writes;
    proxier.resync(START).unwrap();
    assert_eq!(proxier.dataplane.writes, writes, "read in vain");
}

#[test]
fn nobody_gets_in_at_the_machines_own_address_while_rules_fail() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert([198, 51, 100, 5].into());
    kernel.rules = Some(Table::default());
    kernel.faults.insert(0, Fault::Refused);
    let mut proxier = proxier(kernel, &directory.path().join("state"));
    told(&mut proxier, &[NODE, SERVICE, SLICE], Input::Whole);
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
