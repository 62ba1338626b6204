//! A family of addresses that this node serves but does not speak.

use super::*;
use crate::plan::SourceFlaw;

const NODE: [&str; 2] = ["fd00:172:18::2", "fd00:172:18::22"];

fn parse(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns the Service `six`, which has IPv6 addresses only.
fn six() -> Manifest {
    Manifest::service("six")
        .cluster_ip("fd00:10:96::6")
        .port("dns", "UDP", 53)
}

/// Returns the Problems about IPv6 addresses of the node, and whether the node is unhealthy.
fn told(proxier: &Fake) -> (Vec<String>, Option<String>) {
    let problems = proxier.problems().into_iter();
    let problems = problems.filter(|problem| problem.object == "This node");
    (
        problems.map(|problem| problem.to_string()).collect(),
        proxier.refusal(),
    )
}

#[test]
fn a_node_whose_ipv6_addresses_are_all_duplicates_is_unhealthy() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert(parse("172.18.0.2"));
    for address in NODE {
        kernel.machine.addresses.insert(parse(address));
        (kernel.machine).flaw(parse(address), SourceFlaw::Unusable);
    }
    let mut proxier = proxier(kernel, &directory.path().join("ledger"));
    receive(&mut proxier, &whole_cluster());
    proxier.sync(START).unwrap();
    assert_eq!(told(&proxier), (vec![], None), "no frontend of IPv6");

    let [node, service, slice] = whole_cluster();
    receive(&mut proxier, &[node, service, slice, six()]);
    proxier.sync(START).unwrap();
    let (problems, refusal) = told(&proxier);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains(NODE[0]) && problems[0].contains("is tentative or a duplicate"),
        "{problems:?}"
    );
    assert!(refusal.unwrap().contains("each IPv6 address of this node"));

    // The detection of one ends well.
    let flaws = &mut proxier.dataplane.kernel.machine.flawed_sources;
    flaws.remove(&parse(NODE[1]));
    proxier.resync(START).unwrap();
    assert_eq!(told(&proxier), (vec![], None));
    let sources = proxier.desired().addresses.get(&parse("fd00:10:96::6"));
    assert_eq!(sources, Some(&Some(parse(NODE[1]))));
}

#[test]
fn a_node_without_an_ipv6_address_is_told_and_stays_healthy() {
    let directory = tempfile::tempdir().unwrap();
    let mut kernel = FakeKernel::default();
    kernel.machine.addresses.insert(parse("172.18.0.2"));
    let mut proxier = proxier(kernel, &directory.path().join("ledger"));
    receive(&mut proxier, &[node(), six()]);
    proxier.sync(START).unwrap();
    let (problems, refusal) = told(&proxier);
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("link-local"), "{problems:?}");
    assert_eq!(refusal, None);
}

/// The few addresses of the other family are not half of everything.
#[test]
fn a_family_whose_service_addresses_are_all_refused_makes_the_node_unhealthy() {
    for has_address in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let mut kernel = FakeKernel::default();
        if has_address {
            kernel.machine.addresses.insert(parse(NODE[0]));
        }
        let mut proxier = proxier(kernel, &directory.path().join("ledger"));
        receive(&mut proxier, &whole_cluster());
        proxier.sync(START).unwrap();
        let [node, service, slice] = whole_cluster();
        receive(&mut proxier, &[node, service, slice, six()]);
        // The rules and the virtual server come first.
        refuse_after(&mut proxier, 2);
        let applied = proxier.sync(START).unwrap();
        assert_eq!(applied.failures().count(), 1, "{applied:?}");
        let refusal =
            has_address.then(|| "the kernel refuses all 1 service addresses of IPv6".to_owned());
        assert_eq!(proxier.refusal(), refusal);
        proxier.dataplane.kernel.faults.clear();
        let due = proxier.next_due().unwrap();
        proxier.sync(due).unwrap();
        assert_eq!(proxier.refusal(), None);
    }
}
