//! The order of writes in a round: tighter rules, then the Ops that need them, then looser rules.

use super::*;

/// The number of writes that delete the Service `ranged`: rules, 2 addresses, the virtual servers of the load balancer
/// and of the cluster IP, rules.
const DELETION_WRITES: usize = 6;

#[test]
fn a_removed_frontend_keeps_its_guard_until_its_virtual_server_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    for accepted in 0..=DELETION_WRITES {
        let mut proxier = serving(&directory.path().join(accepted.to_string()));
        receive(&mut proxier, &[node()]);
        refuse_after(&mut proxier, accepted);
        let before = proxier.dataplane.kernel.writes;
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.failures().count() == 0, accepted == DELETION_WRITES);
        assert!(proxier.dataplane.kernel.writes - before <= DELETION_WRITES);
        let rules = rules(&proxier);
        assert_eq!(rules.contains(FRONTEND), accepted == 0, "{rules}");
        if accepted < DELETION_WRITES - 1 {
            // The last write removes the guards, and only those of deleted frontends.
            assert!(rules.contains(GUARD), "{rules}");
        }
        let state = &proxier.dataplane.kernel.state;
        match DELETION_WRITES - accepted {
            // The guard outlives the virtual server of the load balancer.
            2 => assert_eq!(state.virtual_servers.len(), 1),
            1 => assert!(state.virtual_servers.is_empty() && state.addresses.is_empty()),
            _ => assert_guarded(&proxier),
        }
        assert_removed(&mut proxier, 2 * START);
    }
}

#[test]
fn a_frontend_that_cannot_be_deleted_delays_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    receive(&mut proxier, &[node()]);
    let second_address = proxier.dataplane.kernel.writes + 2;
    proxier
        .dataplane
        .kernel
        .faults
        .insert(second_address, Fault::Refused);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1);
    assert_eq!(proxier.dataplane.kernel.state.addresses.len(), 1);
    assert_guarded(&proxier);
    let addresses = &proxier.dataplane.kernel.rules.as_ref().unwrap().sets["service-addresses-4"];
    assert_eq!(addresses.elements().count(), 1);
    assert_removed(&mut proxier, 2 * START);
}

#[test]
fn a_frontend_removed_while_no_process_ran_is_guarded_until_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    for accepted in 1..=DELETION_WRITES {
        let ledger = directory.path().join(accepted.to_string());
        let kernel = serving(&ledger).dataplane.kernel;
        let mut next = proxier(kernel, &ledger);
        receive(&mut next, &[node()]);
        refuse_after(&mut next, accepted);
        next.sync(START).unwrap();
        if accepted < DELETION_WRITES - 2 {
            assert_guarded(&next);
        }
        assert_removed(&mut next, 2 * START);
    }
}

#[test]
fn rules_are_written_twice_only_if_an_op_needs_a_guard() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("ledger"));
    let endpoints = || slice(&["10.244.1.2"]);
    for (change, manifests, transactions) in [
        ("a Service appears", vec![node(), service()], 1),
        ("it gets endpoints", vec![node(), service(), endpoints()], 2),
        (
            "its source range becomes wider",
            vec![node(), service_for("203.0.112.0/23"), endpoints()],
            1,
        ),
        (
            "its source range is removed",
            vec![
                node(),
                open_service("ranged", "10.96.3.1", "198.51.100.5"),
                endpoints(),
            ],
            1,
        ),
        (
            "its source range returns",
            vec![node(), service(), endpoints()],
            1,
        ),
        ("it loses its endpoints", vec![node(), service()], 1),
        ("it is deleted", vec![node()], 2),
    ] {
        let before = proxier.dataplane.kernel.rules_generation;
        receive(&mut proxier, &manifests);
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.failures().count(), 0, "{change}");
        let rules = rules_from_scratch(&proxier);
        assert_eq!(proxier.dataplane.kernel.rules, Some(rules), "{change}");
        let written = proxier.dataplane.kernel.rules_generation - before;
        assert_eq!(written, transactions, "{change}");
    }
}
