//! The list of all Problems, which is kept while none changes.

use std::sync::Arc;

use super::*;
use crate::cluster::model::{ObjectName, ServiceCidr};
use crate::cluster::store::Parsed;

/// Returns the objects with Problems after a round, in the kept list, which must equal a new one. The Node is not
/// among them, whose address the machine lacks.
fn objects(proxier: &mut Fake) -> Vec<String> {
    proxier.resync(START).unwrap();
    let problems = proxier.current_problems();
    assert_eq!(*problems, *proxier.problems());
    assert!(Arc::ptr_eq(&problems, &proxier.current_problems()));
    let objects = problems.iter().map(|problem| problem.object.clone());
    objects.filter(|object| object != "Node node-a").collect()
}

#[test]
fn the_kept_list_follows_what_decides_about_service_ranges() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    assert_eq!(objects(&mut proxier), [""; 0]);
    let name = ObjectName::new("", "oops");
    proxier.receive([Event::ServiceCidrs(Update::Apply(Parsed {
        name: name.clone(),
        object: Some(ServiceCidr {
            name: "oops".into(),
            ranges: vec![Cidr::parse("172.19.0.0/16").unwrap()],
        }),
        problems: Vec::new(),
        changed: None,
    }))]);
    assert_eq!(objects(&mut proxier), [""; 0]);
    // Of the machine, and then of the snapshot.
    let address = [172, 19, 0, 2].into();
    proxier.dataplane.kernel.machine.addresses.insert(address);
    assert_eq!(objects(&mut proxier), ["ServiceCIDR oops"]);
    proxier.dataplane.kernel.machine.addresses.remove(&address);
    assert_eq!(objects(&mut proxier), [""; 0]);
    proxier.dataplane.kernel.machine.addresses.insert(address);
    assert_eq!(objects(&mut proxier), ["ServiceCIDR oops"]);
    proxier.receive([Event::ServiceCidrs(Update::Delete(name))]);
    assert_eq!(objects(&mut proxier), [""; 0]);
}

#[test]
fn the_kept_list_follows_the_clients_that_packet_rules_recognise() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    assert_eq!(objects(&mut proxier), [""; 0]);
    let local = || service().spec("externalTrafficPolicy", "Local");
    let endpoints = || slice(&["10.244.1.2"]);
    receive(&mut proxier, &[node(), local(), endpoints()]);
    assert_eq!(objects(&mut proxier), ["Configuration"]);
    let with_pods = node().spec("podCIDRs", vec!["10.244.1.0/24"]);
    receive(&mut proxier, &[with_pods, local(), endpoints()]);
    assert_eq!(objects(&mut proxier), [""; 0]);
    receive(&mut proxier, &[node(), local(), endpoints()]);
    assert_eq!(objects(&mut proxier), ["Configuration"]);
    receive(&mut proxier, &whole_cluster());
    assert_eq!(objects(&mut proxier), [""; 0]);
}
