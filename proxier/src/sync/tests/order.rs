//! Rules tighten before the Ops that need them, and loosen after.

use super::*;

#[test]
fn a_removed_frontend_keeps_its_guard_until_its_virtual_server_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    // Rules, 2 addresses, 2 virtual servers, rules.
    for writes in 0..=6 {
        let mut proxier = serving(&directory.path().join(writes.to_string()));
        receive(&mut proxier, &[NODE]);
        fail_from(&mut proxier, writes);
        let before = proxier.dataplane.writes;
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.failures().count() == 0, writes == 6);
        assert!(proxier.dataplane.writes - before <= 6);
        let now = rules(&proxier);
        assert_eq!(now.contains(FRONTEND), writes == 0, "{now}");
        if writes < 5 {
            // Guards are removed last, and only those of deleted frontends.
            assert!(now.contains(GUARD), "{now}");
        }
        if writes == 5 {
            assert_eq!(
                proxier.dataplane.state,
                crate::observed::Observed::default()
            );
        } else {
            assert_guarded(&proxier);
        }
        assert_removed(&mut proxier, 2 * START);
    }
}

#[test]
fn a_frontend_that_cannot_be_deleted_delays_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    receive(&mut proxier, &[NODE]);
    // The deletion of the second address.
    let write = proxier.dataplane.writes + 2;
    proxier.dataplane.faults.insert(write, Fault::Refused);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1);
    let left: Vec<_> = proxier.dataplane.state.addresses.keys().copied().collect();
    assert_eq!(left.len(), 1);
    assert_guarded(&proxier);
    let elements = &proxier.dataplane.rules.as_ref().unwrap().sets["service-addresses-4"].elements;
    assert_eq!(elements.len(), 1);
    assert_removed(&mut proxier, 2 * START);
}

#[test]
fn a_frontend_removed_while_no_process_ran_is_guarded_until_it_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    for writes in 1..=6 {
        let state = directory.path().join(writes.to_string());
        let kernel = serving(&state).dataplane;
        let mut next = proxier(kernel, &state);
        receive(&mut next, &[NODE]);
        fail_from(&mut next, writes);
        next.sync(START).unwrap();
        if writes < 5 {
            assert_guarded(&next);
        }
        assert_removed(&mut next, 2 * START);
    }
}

#[test]
fn a_round_that_loosens_nothing_writes_rules_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("state"));
    let mut rounds = |documents: &[&str]| {
        let before = proxier.dataplane.rules_generation;
        receive(&mut proxier, documents);
        assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
        assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
        proxier.dataplane.rules_generation - before
    };
    assert_eq!(rounds(&[NODE, SERVICE]), 1);
    assert_eq!(
        rounds(&[NODE, SERVICE, SLICE]),
        2,
        "the frontend has endpoints at last"
    );
    let wider = SERVICE.replace("203.0.113.0/24", "203.0.112.0/23");
    assert_eq!(rounds(&[NODE, &wider, SLICE]), 1);
    let open = SERVICE.replace("  loadBalancerSourceRanges: [203.0.113.0/24]\n", "");
    assert_eq!(rounds(&[NODE, &open, SLICE]), 1, "no Op needs the guard");
    assert_eq!(rounds(&[NODE, SERVICE, SLICE]), 1);
    assert_eq!(rounds(&[NODE, SERVICE]), 1);
    assert_eq!(rounds(&[NODE]), 2);
}
