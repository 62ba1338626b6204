//! What stays while input is missing.

use super::*;
use crate::nftables::Key;

#[test]
fn rules_stay_while_part_of_the_input_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let moved = NODE.replace("172.18.0.2", "172.18.0.3");
    for (number, partial) in [
        &[NODE][..],
        &[NODE, SERVICE],
        &[NODE, SLICE],
        // Here all rules are made anew.
        &[&moved],
        &[&moved, SERVICE],
    ]
    .into_iter()
    .enumerate()
    {
        let mut proxier = serving(&directory.path().join(number.to_string()));
        let before = proxier.dataplane.clone();
        told(&mut proxier, partial, Input::Partial);
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.ops, []);
        assert_eq!(proxier.dataplane.state, before.state);
        assert_eq!(
            proxier.dataplane.rules, before.rules,
            "without all of {partial:?}"
        );
        told(&mut proxier, &[NODE], Input::Whole);
        comes_to_rest(&mut proxier, START);
    }
}

#[test]
fn what_is_known_counts_while_other_input_cannot_be_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("state"));
    let narrower = SERVICE.replace("203.0.113.0/24", "203.0.113.7/32");
    told(&mut proxier, &[NODE, &narrower], Input::Partial);
    proxier.sync(START).unwrap();
    let then = rules(&proxier);
    assert!(
        then.contains("ip saddr 203.0.113.7 return") && !then.contains(REFUSED),
        "{then}"
    );
    told(&mut proxier, &[NODE, &narrower, SLICE], Input::Whole);
    proxier.sync(START).unwrap();
    assert_eq!(proxier.dataplane.rules, Some(from_scratch(&proxier)));
    assert_eq!(rules(&proxier), then);
}

/// A process that takes over what one that served everything left.
fn successor(state: &Path, documents: &[&str], input: Input) -> Fake {
    let kernel = serving(state).dataplane;
    let mut next = proxier(kernel, state);
    told(&mut next, documents, input);
    next
}

#[test]
fn rules_stay_when_a_process_starts_with_part_of_the_input() {
    let directory = tempfile::tempdir().unwrap();
    let partial = [&[NODE][..], &[NODE, SERVICE], &[NODE, SLICE], &[SERVICE]];
    for (number, partial) in partial.into_iter().enumerate() {
        let state = directory.path().join(number.to_string());
        let mut next = successor(&state, partial, Input::Partial);
        let before = next.dataplane.clone();
        for round in 1..3 {
            assert_eq!(next.resync(round * START).unwrap().ops, []);
            assert_eq!(next.dataplane.state, before.state);
            assert_eq!(next.dataplane.rules, before.rules, "with {partial:?} alone");
        }
        // Another start does no better, and no worse.
        let mut next = proxier(next.dataplane, &state);
        told(&mut next, partial, Input::Partial);
        next.sync(START).unwrap();
        assert_eq!(next.dataplane.rules, before.rules, "with {partial:?} alone");
        told(&mut next, &[NODE, SERVICE, SLICE], Input::Whole);
        assert_eq!(next.sync(START).unwrap().ops, []);
        assert_eq!(next.dataplane.rules, before.rules);
        told(&mut next, &[NODE], Input::Whole);
        comes_to_rest(&mut next, START);
    }
}

#[test]
fn what_is_known_counts_when_a_process_starts_with_part_of_the_input() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let open = SERVICE.replace("  loadBalancerSourceRanges: [203.0.113.0/24]\n", "");
    let mut next = successor(&state, &[NODE, &open, SLICE], Input::Partial);
    next.sync(START).unwrap();
    assert_eq!(next.dataplane.rules, Some(from_scratch(&next)));
    // Nothing of it is taken for all there should be.
    let service = |name: &str, last: u8| {
        let service = open.replace("name: ranged", &format!("name: {name}"));
        let service = service.replace("10.96.3.1", &format!("10.96.3.{last}"));
        service.replace("198.51.100.5", &format!("198.51.100.{last}"))
    };
    let other = service("other", 6);
    told(&mut next, &[NODE, &other], Input::Partial);
    next.sync(START).unwrap();
    let mut last = proxier(next.dataplane, &state);
    told(&mut last, &[NODE, &other], Input::Whole);
    last.sync(START).unwrap();
    assert_eq!(last.dataplane.rules, Some(from_scratch(&last)));
    assert!(!rules(&last).contains(FRONTEND));
}

/// A Service whose clients outside the cluster find nobody here, and clients inside do.
const LOCAL: &str = "
apiVersion: v1
kind: Service
metadata: {name: local}
spec:
  type: LoadBalancer
  clusterIP: 10.96.3.2
  externalTrafficPolicy: Local
  ports: [{name: dns, port: 53, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.6}]}}
";

fn slice_of(service: &str, here: &str, node: &str) -> String {
    let slice = SLICE.replace("ranged", service).replace("10.244.1.2", here);
    slice.replace("]}]", &format!("], nodeName: {node}}}]"))
}

#[test]
fn clients_inside_keep_endpoints_elsewhere_when_a_process_starts_without_them() {
    let directory = tempfile::tempdir().unwrap();
    let far = slice_of("local", "10.244.2.2", "node-b");
    let near = far.replace("metadata: {name: local-4", "metadata: {name: local-5");
    let near = near.replace("10.244.2.2", "10.244.1.2");
    let near = near.replace("node-b", "node-a");
    for (number, whole) in [vec![NODE, LOCAL, &far], vec![NODE, LOCAL, &far, &near]]
        .into_iter()
        .enumerate()
    {
        let state = directory.path().join(number.to_string());
        let mut first = proxier(FakeKernel::default(), &state);
        told(&mut first, &whole, Input::Whole);
        first.sync(START).unwrap();
        let before = first.dataplane.clone();
        assert!(rules(&first).contains("198.51.100.6 . udp . 53 : goto inside-"));
        let mut next = proxier(before.clone(), &state);
        told(&mut next, &[NODE, LOCAL], Input::Partial);
        assert_eq!(next.sync(START).unwrap().ops, []);
        assert_eq!(next.dataplane.rules, before.rules);
        told(&mut next, &whole, Input::Whole);
        assert_eq!(next.sync(START).unwrap().ops, []);
        assert_eq!(next.dataplane.rules, before.rules);
        told(&mut next, &[NODE], Input::Whole);
        comes_to_rest(&mut next, START);
    }
}

#[test]
fn what_is_read_later_counts_too() {
    let directory = tempfile::tempdir().unwrap();
    let narrower = SERVICE.replace("203.0.113.0/24", "203.0.113.7/32");
    let open = SERVICE.replace("  loadBalancerSourceRanges: [203.0.113.0/24]\n", "");
    for (number, now) in [SERVICE, &narrower, &open].into_iter().enumerate() {
        let state = directory.path().join(number.to_string());
        let mut next = successor(&state, &[NODE], Input::Partial);
        next.sync(START).unwrap();
        told(&mut next, &[NODE, now], Input::Partial);
        assert_eq!(next.sync(START).unwrap().ops, []);
        let then = next.dataplane.rules.clone();
        told(&mut next, &[NODE, now, SLICE], Input::Whole);
        next.sync(START).unwrap();
        assert_eq!(next.dataplane.rules, Some(from_scratch(&next)));
        assert_eq!(next.dataplane.rules, then, "known but for its endpoints");
    }
}

#[test]
fn an_address_that_becomes_the_machines_own_is_not_held() {
    let directory = tempfile::tempdir().unwrap();
    let address = std::net::IpAddr::from([198, 51, 100, 5]);
    let is_refused = |proxier: &Fake| {
        let rules = proxier.dataplane.rules.as_ref().unwrap();
        let key = Key::new([address.into()]);
        let addresses = &rules.sets["service-addresses-4"].elements;
        addresses.contains_key(&key)
    };
    // Together with the loss of the Service, after it, and while the Service is known.
    for (number, [first, then]) in [[false, true], [true, true], [true, false]]
        .into_iter()
        .enumerate()
    {
        let mut proxier = serving(&directory.path().join(number.to_string()));
        assert!(is_refused(&proxier));
        if first {
            let documents = if then {
                &[NODE][..]
            } else {
                &[NODE, SERVICE, SLICE]
            };
            told(&mut proxier, documents, Input::Partial);
            proxier.sync(START).unwrap();
            assert!(is_refused(&proxier), "held, or served");
        }
        proxier.dataplane.machine.addresses.insert(address);
        told(&mut proxier, &[NODE], Input::Partial);
        proxier.resync(START).unwrap();
        assert!(!is_refused(&proxier));
        // Nor when all rules are looked at again.
        proxier.dataplane.rules_generation += 1;
        proxier.resync(START).unwrap();
        assert!(!is_refused(&proxier));
    }
}

#[test]
fn a_process_that_starts_then_does_not_hold_it_either() {
    let directory = tempfile::tempdir().unwrap();
    for (number, is_late) in [false, true].into_iter().enumerate() {
        let state = directory.path().join(number.to_string());
        let mut next = successor(&state, &[NODE], Input::Partial);
        if is_late {
            next.sync(START).unwrap();
            assert!(rules(&next).contains("{ 10.96.3.1,\n\t\t\t     198.51.100.5 }"));
        }
        let own = [198, 51, 100, 5].into();
        next.dataplane.machine.addresses.insert(own);
        next.resync(START).unwrap();
        let rules = rules(&next);
        assert!(rules.contains("elements = { 10.96.3.1 }"), "{rules}");
        assert!(rules.contains(GUARD), "{rules}");
    }
}
