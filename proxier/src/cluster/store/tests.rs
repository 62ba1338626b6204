mod histories;

use std::collections::BTreeMap;

use super::*;
use crate::cluster::problem::MAX_PROBLEMS;

fn slice(name: &str, service: &str) -> Parsed<EndpointSlice> {
    let name = ObjectName::new("default", name);
    Parsed {
        name: name.clone(),
        object: Some(EndpointSlice {
            name,
            service: ObjectName::new("default", service),
            ports: Arc::default(),
            endpoints: Box::default(),
        }),
        problems: Vec::new(),
        changed: None,
    }
}

fn names(snapshot: &Snapshot, service: &str) -> Vec<String> {
    let service = ObjectName::new("default", service);
    snapshot
        .slices(&service)
        .map(|slice| slice.name.name().to_owned())
        .collect()
}

/// Applies an update of slices. Returns the names of the Services that it touched.
fn apply(snapshot: &mut Snapshot, change: Update<EndpointSlice>) -> Vec<String> {
    let mut touched = Touched::none();
    snapshot.apply(Event::EndpointSlices(change), &mut touched);
    match touched {
        Touched::Some(names) => names.iter().map(|name| name.name().to_owned()).collect(),
        Touched::All => vec!["all".to_owned()],
    }
}

#[test]
fn a_slice_can_move_to_another_service() {
    let snapshot = &mut Snapshot::default();
    for (name, service) in [("b", "web"), ("a", "web"), ("c", "db")] {
        let change = Update::Apply(slice(name, service));
        assert_eq!(apply(snapshot, change), [service]);
    }
    let touched = apply(snapshot, Update::Apply(slice("b", "db")));
    assert_eq!(touched, ["db", "web"]);
    assert_eq!(names(snapshot, "web"), ["a"]);
    assert_eq!(names(snapshot, "db"), ["b", "c"]);
    let gone = ObjectName::new("default", "a");
    assert_eq!(apply(snapshot, Update::Delete(gone)), ["web"]);
    assert_eq!(names(snapshot, "web"), [""; 0]);
}

#[test]
fn a_relist_touches_only_differences() {
    let snapshot = &mut Snapshot::default();
    let all = || vec![slice("a", "web"), slice("b", "db"), slice("c", "db")];
    assert_eq!(apply(snapshot, Update::Reset(all())), ["db", "web"]);
    assert_eq!(apply(snapshot, Update::Reset(all())), [""; 0]);
    assert_eq!(apply(snapshot, Update::Apply(slice("a", "web"))), [""; 0]);
    let fewer = all()[..2].to_vec();
    assert_eq!(apply(snapshot, Update::Reset(fewer)), ["db"]);
    assert_eq!(names(snapshot, "db"), ["b"]);
}

#[test]
fn problems_are_removed_with_their_objects() {
    let snapshot = &mut Snapshot::default();
    let with_problems = |name: &str| Parsed {
        problems: vec![Problem::new(name, "field", "value", "is wrong")],
        ..slice(name, "web")
    };
    let objects = |snapshot: &Snapshot| -> Vec<String> {
        let problems = snapshot.problems();
        problems.map(|problem| problem.object.to_string()).collect()
    };
    let all = vec![with_problems("b"), slice("c", "web"), with_problems("a")];
    apply(snapshot, Update::Reset(all));
    assert_eq!(objects(snapshot), ["a", "b"]);
    apply(snapshot, Update::Apply(with_problems("c")));
    apply(snapshot, Update::Apply(slice("a", "web")));
    assert_eq!(objects(snapshot), ["b", "c"]);
    apply(snapshot, Update::Delete(ObjectName::new("default", "b")));
    assert_eq!(objects(snapshot), ["c"]);
    apply(snapshot, Update::Reset(vec![slice("c", "web")]));
    assert_eq!(objects(snapshot), [""; 0]);
}

#[test]
fn an_unusable_object_keeps_its_last_usable_content() {
    let snapshot = &mut Snapshot::default();
    let unreadable = |name: &str| Parsed {
        object: None,
        problems: vec![Problem::new(name, "", "", "cannot be read")],
        ..slice(name, "web")
    };
    let all = vec![slice("a", "web"), unreadable("b")];
    assert_eq!(apply(snapshot, Update::Reset(all)), ["web"]);
    assert_eq!(apply(snapshot, Update::Apply(unreadable("a"))), ["web"]);
    let relist = vec![unreadable("a"), unreadable("b")];
    assert_eq!(apply(snapshot, Update::Reset(relist)), [""; 0]);
    assert_eq!(names(snapshot, "web"), ["a"]);
    assert_eq!(snapshot.problems().count(), 2);
    // An object without content and without problems replaces the old one.
    let nothing = Parsed {
        object: None,
        ..slice("a", "web")
    };
    assert_eq!(apply(snapshot, Update::Apply(nothing)), ["web"]);
    assert_eq!(names(snapshot, "web"), [""; 0]);
}

#[test]
fn problems_are_listed_up_to_a_bound_and_unusable_objects_beyond_it_keep_their_content() {
    let count = MAX_PROBLEMS + 10;
    let name = |number: usize| format!("s{number:05}");
    let usable: Vec<_> = (0..count)
        .map(|number| slice(&name(number), "web"))
        .collect();
    let unusable = |number: usize| Parsed {
        object: None,
        problems: vec![Problem::new(number, "", "", "cannot be read"); 2],
        ..slice(&name(number), "web")
    };
    let all = || (0..count).map(unusable).collect::<Vec<_>>();
    let counts = |snapshot: &Snapshot| (snapshot.problems().count(), snapshot.unlisted());
    for is_list in [false, true] {
        let snapshot = &mut Snapshot::default();
        apply(snapshot, Update::Reset(usable.clone()));
        match is_list {
            true => drop(apply(snapshot, Update::Reset(all()))),
            false => drop(apply(snapshot, Update::Merge(all()))),
        }
        let (listed, unlisted) = counts(snapshot);
        assert!(listed <= MAX_PROBLEMS);
        assert!(unlisted > 0);
        assert_eq!(names(snapshot, "web").len(), count);
        // The same again is no difference.
        assert_eq!(apply(snapshot, Update::Reset(all())), [""; 0]);
        assert_eq!(counts(snapshot), (listed, unlisted));
        // Solved problems make room.
        for parsed in &usable[..count - 1] {
            apply(snapshot, Update::Apply(parsed.clone()));
        }
        apply(snapshot, Update::Apply(unusable(count - 1)));
        assert_eq!(counts(snapshot), (2, 0));
    }
}

#[test]
fn a_merge_keeps_absent_objects() {
    let snapshot = &mut Snapshot::default();
    let all = vec![slice("a", "web"), slice("b", "db"), slice("c", "db")];
    apply(snapshot, Update::Reset(all.clone()));
    let part = vec![slice("b", "db"), slice("c", "web"), slice("d", "new")];
    assert_eq!(apply(snapshot, Update::Merge(part)), ["db", "new", "web"]);
    assert_eq!(names(snapshot, "web"), ["a", "c"]);
    assert_eq!(names(snapshot, "db"), ["b"]);
    assert_eq!(names(snapshot, "new"), ["d"]);
    assert_eq!(apply(snapshot, Update::Merge(Vec::new())), [""; 0]);
    // The next whole list deletes what it lacks.
    assert_eq!(apply(snapshot, Update::Reset(all)), ["db", "new", "web"]);
    assert_eq!(names(snapshot, "db"), ["b", "c"]);
    assert_eq!(names(snapshot, "new"), [""; 0]);
}

#[test]
fn a_merge_touches_only_differences() {
    let snapshot = &mut Snapshot::default();
    let all = vec![slice("a", "web"), slice("b", "db")];
    apply(snapshot, Update::Reset(all.clone()));
    assert_eq!(apply(snapshot, Update::Merge(all)), [""; 0]);
    let part = vec![slice("a", "web"), slice("c", "db")];
    assert_eq!(apply(snapshot, Update::Merge(part)), ["db"]);
}

#[test]
fn a_merge_does_not_complete_a_snapshot() {
    let mut snapshot = Snapshot::default();
    apply(&mut snapshot, Update::Merge(vec![slice("a", "web")]));
    let services = Event::Services(Update::Merge(Vec::new()));
    snapshot.apply(services, &mut Touched::none());
    assert!(!snapshot.is_complete());
    snapshot.accept_partial();
    assert!(snapshot.is_complete());
    assert_eq!(names(&snapshot, "web"), ["a"]);
    assert_eq!(apply(&mut snapshot, Update::Reset(Vec::new())), ["web"]);
    assert!(snapshot.is_complete());
}

#[test]
fn a_snapshot_is_complete_once_services_and_slices_were_listed() {
    let mut snapshot = Snapshot::default();
    apply(&mut snapshot, Update::Apply(slice("a", "web")));
    apply(&mut snapshot, Update::Reset(Vec::new()));
    assert!(!snapshot.is_complete());
    let services = Event::Services(Update::Reset(Vec::new()));
    snapshot.apply(services, &mut Touched::none());
    assert!(snapshot.is_complete());
}
