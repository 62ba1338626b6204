//! Input of which a part cannot be read.

use super::*;

#[test]
fn a_running_proxier_changes_only_what_the_readable_part_changes() {
    let directory = tempfile::tempdir().unwrap();
    let endpoints = || slice(&["10.244.1.2"]);
    for (label, part) in [
        ("nothing is readable", vec![]),
        ("only the Node is readable", vec![node()]),
        ("the endpoints are not readable", vec![node(), service()]),
        ("the Service is not readable", vec![node(), endpoints()]),
    ] {
        let mut proxier = serving(&directory.path().join(label));
        let before = proxier.dataplane.kernel.clone();
        receive_part(&mut proxier, &part);
        assert_eq!(proxier.resync(START).unwrap().changes.ops, [], "{label}");
        assert_eq!(proxier.dataplane.kernel.state, before.state, "{label}");
        assert_eq!(proxier.dataplane.kernel.rules, before.rules, "{label}");
        receive(&mut proxier, &[node()]);
        assert_removed(&mut proxier, START);
    }
    let mut proxier = serving(&directory.path().join("a change"));
    receive_part(&mut proxier, &[node(), service_for("203.0.113.7/32")]);
    proxier.sync(START).unwrap();
    let rules = rules(&proxier);
    assert!(rules.contains("ip saddr 203.0.113.7 return"), "{rules}");
    assert!(!rules.contains(REJECTED), "the endpoints stay: {rules}");
}

#[test]
fn a_new_process_waits_for_the_whole_input_if_the_kernel_has_state_of_ours() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut next = proxier(serving(&ledger).dataplane.kernel, &ledger);
    assert!(!next.is_complete());
    receive_part(&mut next, &[node(), service()]);
    assert!(!next.may_start().unwrap());
    receive(&mut next, &whole_cluster());
    assert!(next.may_start().unwrap());
    assert_eq!(next.sync(START).unwrap().changes.ops, []);
}

#[test]
fn every_kind_of_own_state_prevents_a_start_with_partial_input() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let whole = serving(&ledger).dataplane.kernel;
    let rules_only = FakeKernel {
        state: Observed::default(),
        ..whole.clone()
    };
    let without_rules = FakeKernel {
        rules: None,
        ..whole.clone()
    };
    let mut virtual_servers_only = without_rules.clone();
    virtual_servers_only.state.addresses.clear();
    for (state, kernel, may_start) in [
        ("rules, addresses and virtual servers", whole, false),
        ("rules", rules_only, false),
        ("addresses and virtual servers", without_rules, false),
        ("virtual servers", virtual_servers_only, false),
        ("nothing", FakeKernel::default(), true),
    ] {
        let mut next = proxier(kernel, &ledger);
        receive_part(&mut next, &whole_cluster());
        assert_eq!(
            next.may_start().unwrap(),
            may_start,
            "the kernel has {state}"
        );
    }
}

#[test]
fn a_new_process_programs_the_readable_part_if_the_kernel_has_no_state_of_ours() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    receive_part(&mut first, &whole_cluster());
    assert!(first.may_start().unwrap());
    first.sync(START).unwrap();
    assert_eq!(first.dataplane.kernel.state.virtual_servers.len(), 2);
    receive(&mut first, &[node()]);
    assert_removed(&mut first, START);
}

#[test]
fn rules_do_not_reject_an_address_that_became_the_machines_own() {
    let directory = tempfile::tempdir().unwrap();
    let address = IpAddr::from([198, 51, 100, 5]);
    let mut proxier = serving(&directory.path().join("ledger"));
    assert!(is_rejected(&proxier, address));
    proxier.dataplane.kernel.machine.addresses.insert(address);
    receive_part(&mut proxier, &[node()]);
    proxier.resync(START).unwrap();
    assert!(!is_rejected(&proxier, address));
    // A changed generation makes the next resync write all rules again.
    proxier.dataplane.kernel.rules_generation += 1;
    proxier.resync(START).unwrap();
    assert!(!is_rejected(&proxier, address));
}
