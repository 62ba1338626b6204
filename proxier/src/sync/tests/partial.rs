//! Input of which a part cannot be read.

use super::*;

/// A proxier that finds what another one, which served everything, left in the kernel.
fn successor(ledger: &Path) -> Fake {
    proxier(serving(ledger).dataplane, ledger)
}

#[test]
fn a_running_proxier_changes_only_what_the_readable_part_changes() {
    let directory = tempfile::tempdir().unwrap();
    for (label, part) in [
        ("nothing is readable", &[][..]),
        ("only the Node is readable", &[NODE]),
        ("the endpoints are not readable", &[NODE, SERVICE]),
        ("the Service is not readable", &[NODE, SLICE]),
    ] {
        let mut proxier = serving(&directory.path().join(label));
        let before = proxier.dataplane.clone();
        receive_part(&mut proxier, part);
        assert_eq!(proxier.resync(START).unwrap().ops, [], "{label}");
        assert_eq!(proxier.dataplane.state, before.state, "{label}");
        assert_eq!(proxier.dataplane.rules, before.rules, "{label}");
        receive(&mut proxier, &[NODE]);
        assert_removed(&mut proxier, START);
    }
    let mut proxier = serving(&directory.path().join("a change"));
    let narrower = SERVICE.replace("203.0.113.0/24", "203.0.113.7/32");
    receive_part(&mut proxier, &[NODE, &narrower]);
    proxier.sync(START).unwrap();
    let rules = rules(&proxier);
    assert!(rules.contains("ip saddr 203.0.113.7 return"), "{rules}");
    assert!(!rules.contains(REFUSED), "the endpoints stay: {rules}");
}

#[test]
fn a_process_does_not_start_with_partial_input_where_the_kernel_has_state_of_ours() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut next = successor(&ledger);
    assert!(!next.is_complete());
    receive_part(&mut next, &[NODE, SERVICE]);
    assert!(!next.may_start().unwrap());
    receive(&mut next, &[NODE, SERVICE, SLICE]);
    assert!(next.may_start().unwrap());
    assert_eq!(next.sync(START).unwrap().ops, []);
}

#[test]
fn every_kind_of_own_state_prevents_a_start_with_partial_input() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let whole = serving(&ledger).dataplane;
    let may_start = |kernel: FakeKernel| {
        let mut next = proxier(kernel, &ledger);
        receive_part(&mut next, &[NODE, SERVICE, SLICE]);
        next.may_start().unwrap()
    };
    let with = |work: fn(&mut FakeKernel)| {
        let mut kernel = whole.clone();
        work(&mut kernel);
        kernel
    };
    let remove_rules = |kernel: &mut FakeKernel| kernel.rules = None;
    assert!(!may_start(with(|kernel| {
        kernel.state = crate::observed::Observed::default();
    })));
    assert!(!may_start(with(remove_rules)));
    assert!(!may_start(with(|kernel| {
        kernel.rules = None;
        kernel.state.addresses.clear();
    })));
    assert!(may_start(FakeKernel::default()));
}

#[test]
fn a_process_programs_the_readable_part_where_the_kernel_has_nothing_of_ours() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    receive_part(&mut first, &[NODE, SERVICE, SLICE]);
    assert!(first.may_start().unwrap());
    first.sync(START).unwrap();
    assert_eq!(first.dataplane.state.virtual_servers.len(), 2);
    receive(&mut first, &[NODE]);
    assert_removed(&mut first, START);
}

#[test]
fn an_address_that_becomes_the_machines_own_is_rejected_no_longer() {
    let directory = tempfile::tempdir().unwrap();
    let address = std::net::IpAddr::from([198, 51, 100, 5]);
    let mut proxier = serving(&directory.path().join("ledger"));
    let is_rejected = |proxier: &Fake| {
        let rules = proxier.dataplane.rules.as_ref().unwrap();
        let key = crate::nftables::Key::new([address.into()]);
        rules.has_element("service-addresses-4", &key)
    };
    assert!(is_rejected(&proxier));
    proxier.dataplane.machine.addresses.insert(address);
    receive_part(&mut proxier, &[NODE]);
    proxier.resync(START).unwrap();
    assert!(!is_rejected(&proxier));
    // Nor after all rules are written again.
    proxier.dataplane.rules_generation += 1;
    proxier.resync(START).unwrap();
    assert!(!is_rejected(&proxier));
}
