//! Ownership of virtual servers when the ledger's file is lost.

use super::*;

/// Returns a process with the whole input, after one that served everything and lost its ledger.
fn successor_without_ledger(ledger: &Path) -> Fake {
    let kernel = serving(ledger).dataplane;
    std::fs::remove_file(ledger).unwrap();
    let mut next = proxier(kernel, ledger);
    receive(&mut next, &whole_cluster());
    next
}

#[test]
fn a_process_without_the_ledger_adopts_the_virtual_servers_of_the_plan() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut next = successor_without_ledger(&ledger);
    assert_eq!(next.sync(START).unwrap().ops, []);
    assert_eq!(next.ledger().owned().len(), 2);
    // The next process reads the adopted virtual servers from the ledger.
    let mut last = proxier(next.dataplane, &ledger);
    receive(&mut last, &[node()]);
    assert_removed(&mut last, START);
}

#[test]
fn a_preview_does_not_write_what_it_adopts() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut next = successor_without_ledger(&ledger);
    assert_eq!(next.preview(START).unwrap().ops, []);
    assert!(!ledger.exists());
}

#[test]
fn a_ledger_that_another_program_removes_is_written_anew() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("run");
    let ledger = folder.join("ledger");
    let mut first = serving(&ledger);
    std::fs::remove_dir_all(&folder).unwrap();
    first.resync(START).unwrap();
    assert!(ledger.exists());
    // If a round changes the ledger, it writes the file anew without waiting for a resync.
    std::fs::remove_dir_all(&folder).unwrap();
    let more = open_service("more", "10.96.3.2", "198.51.100.6");
    receive(&mut first, &[&whole_cluster()[..], &[more]].concat());
    first.sync(START).unwrap();
    let mut next = proxier(first.dataplane, &ledger);
    assert_eq!(next.ledger().owned().len(), 4);
    receive(&mut next, &[node()]);
    assert_removed(&mut next, START);
}

#[test]
fn the_ledger_names_the_service_to_which_a_frontend_passed() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let key = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Udp,
        address: [198, 51, 100, 5].into(),
        port: 53,
    };
    let owner = |proxier: &Fake| proxier.ledger().owned().owner(&key).cloned();
    assert_eq!(owner(&proxier), Some("default/ranged:dns".into()));
    let other = open_service("other", "10.96.3.2", "198.51.100.5");
    receive(&mut proxier, &[node(), other]);
    proxier.sync(START).unwrap();
    assert_eq!(owner(&proxier), Some("default/other:dns".into()));
}
