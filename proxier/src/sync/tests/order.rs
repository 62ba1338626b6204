//! Rules tighten before the Ops that need them, and loosen after.

use super::*;

#[test]
fn a_frontend_that_goes_is_guarded_to_the_last() {
    let directory = tempfile::tempdir().unwrap();
    // Rules, 2 addresses, 2 virtual servers, rules.
    for writes in 0..=6 {
        let mut proxier = serving(&directory.path().join(writes.to_string()));
        told(&mut proxier, &[NODE], Input::Whole);
        all_fail_from(&mut proxier, writes);
        let before = proxier.dataplane.writes;
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.failures().count() == 0, writes == 6);
        assert!(proxier.dataplane.writes - before <= 6);
        let now = rules(&proxier);
        assert_eq!(now.contains(FRONTEND), writes == 0, "{now}");
        if writes < 5 {
            // What loosens comes last, and only for what is gone.
            assert!(now.contains(GUARD), "{now}");
        }
        if writes == 5 {
            assert_eq!(proxier.dataplane.state, Observed::default());
        } else {
            nobody_gets_in(&proxier);
        }
        comes_to_rest(&mut proxier, 2 * START);
    }
}

#[test]
fn one_frontend_that_cannot_go_holds_up_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    told(&mut proxier, &[NODE], Input::Whole);
    // The second of both addresses.
    let write = proxier.dataplane.writes + 2;
    proxier.dataplane.faults.insert(write, Fault::Refused);
    let applied = proxier.sync(START).unwrap();
    assert_eq!(applied.failures().count(), 1);
    let left: Vec<_> = proxier.dataplane.state.addresses.keys().copied().collect();
    assert_eq!(left.len(), 1);
    nobody_gets_in(&proxier);
    let elements = &proxier.dataplane.rules.as_ref().unwrap().sets["service-addresses-4"].elements;
    assert_eq!(elements.len(), 1);
    comes_to_rest(&mut proxier, 2 * START);
}

#[test]
fn what_went_while_nobody_ran_is_guarded_to_the_last() {
    let directory = tempfile::tempdir().unwrap();
    for writes in 1..=6 {
        let state = directory.path().join(writes.to_string());
        let kernel = serving(&state).dataplane;
        let mut next = proxier(kernel, &state);
        told(&mut next, &[NODE], Input::Whole);
        all_fail_from(&mut next, writes);
        next.sync(START).unwrap();
        if writes < 5 {
            nobody_gets_in(&next);
        }
        comes_to_rest(&mut next, 2 * START);
    }
}

#[test]
fn rounds_that_loosen_nothing_set_rules_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = proxier(FakeKernel::default(), &directory.path().join("state"));
    let mut rounds = |documents: &[&str]| {
        let before = proxier.dataplane.rules_generation;
        told(&mut proxier, documents, Input::Whole);
        assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
        assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
        proxier.dataplane.rules_generation - before
    };
    assert_eq!(rounds(&[NODE, SERVICE]), 1);
    assert_eq!(rounds(&[NODE, SERVICE, SLICE]), 2, "served at last");
    let wider = SERVICE.replace("203.0.113.0/24", "203.0.112.0/23");
    assert_eq!(rounds(&[NODE, &wider, SLICE]), 1);
    let open = SERVICE.replace("  loadBalancerSourceRanges: [203.0.113.0/24]\n", "");
    assert_eq!(rounds(&[NODE, &open, SLICE]), 1, "no Op to wait for");
    assert_eq!(rounds(&[NODE, SERVICE, SLICE]), 1);
    assert_eq!(rounds(&[NODE, SERVICE]), 1);
    assert_eq!(rounds(&[NODE]), 2);
}
