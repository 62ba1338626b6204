//! Firewall marks: other programs' virtual servers of marks, restarts, lost ledgers, and earlier versions.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::cluster::model::{Family, Protocol, ServicePortName};
use crate::dataplane::ipvs::marks::{MarkKey, Marks};
use crate::dataplane::ipvs::observed::{Connections, ObservedServer};

const DRAIN: Duration = Duration::from_secs(60);

/// Returns a Service with policy Local, so that it has a mark.
fn local() -> Manifest {
    Manifest::service("web")
        .of_type("LoadBalancer")
        .cluster_ip("10.96.3.1")
        .ingress("198.51.100.5")
        .spec("externalTrafficPolicy", "Local")
        .port("http", "TCP", 80)
}

fn cluster() -> [Manifest; 3] {
    let slice = Manifest::slice_of("web").port("http", "TCP", 8080);
    let slice = slice.endpoint("10.244.1.2").endpoint("10.244.2.2");
    [node(), local(), slice]
}

fn owner() -> ServicePortName {
    "default/web:http".into()
}

/// Returns the mark that the Service gets first, on a node with this key.
fn first_mark(key: MarkKey) -> u32 {
    let avoided = Filter::new(FilterConfig::default()).mark_bits();
    Marks::new(key, avoided).of(&owner(), Protocol::Tcp, Family::V4)
}

fn key_of(mark: u32) -> ipvs::ServiceKey {
    let family = Family::V4;
    ipvs::ServiceKey::Mark { family, mark }
}

/// Returns the marks that the kernel has virtual servers for.
fn marks(proxier: &Fake) -> Vec<u32> {
    let keys = proxier.dataplane.kernel.state.virtual_servers.keys();
    let marks = keys.filter_map(|key| match key {
        ipvs::ServiceKey::Mark { mark, .. } => Some(mark),
        _ => None,
    });
    marks.collect()
}

/// Returns a virtual server with a destination.
fn server(key: ipvs::ServiceKey, destination: &str) -> ObservedServer {
    let mut server = ObservedServer::empty(&ipvs::Service::new(key, "rr".parse().unwrap()));
    let destination: std::net::SocketAddr = destination.parse().unwrap();
    server.destinations = vec![ipvs::Destination::new(destination.into(), 1)].into();
    server
}

fn started(kernel: FakeKernel, ledger: &Path) -> Fake {
    let mut proxier = draining_proxier(kernel, ledger, DRAIN);
    receive(&mut proxier, &cluster());
    assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
    proxier
}

#[test]
fn a_virtual_server_of_another_program_keeps_its_mark() {
    let directory = tempfile::tempdir().unwrap();
    let mark = first_mark(MarkKey::default());
    let foreign = server(key_of(mark), "192.0.2.1:6443");
    for is_first in [true, false] {
        let ledger = directory.path().join(format!("ledger-{is_first}"));
        let mut kernel = FakeKernel::default();
        let create = |kernel: &mut FakeKernel| {
            let servers = &mut kernel.state.virtual_servers;
            servers.insert(key_of(mark), foreign.clone());
        };
        let mut proxier = if is_first {
            create(&mut kernel);
            started(kernel, &ledger)
        } else {
            let mut proxier = draining_proxier(kernel, &ledger, DRAIN);
            receive(&mut proxier, &[node()]);
            proxier.sync(START).unwrap();
            create(&mut proxier.dataplane.kernel);
            receive(&mut proxier, &cluster());
            proxier.sync(START).unwrap();
            proxier
        };
        let own: Vec<u32> = marks(&proxier)
            .into_iter()
            .filter(|it| *it != mark)
            .collect();
        assert_eq!(own.len(), 1);
        assert!(rules(&proxier).contains(&format!("inside-{:08x}", own[0])));
        proxier.resync(START).unwrap();
        // The next process, and the deletion of the Service, leave it alone too.
        let mut next = started(proxier.dataplane.kernel, &ledger);
        assert_eq!(marks(&next).len(), 2);
        receive(&mut next, &[node()]);
        next.sync(START).unwrap();
        assert_eq!(marks(&next), [mark]);
        let found = &next.dataplane.kernel.state.virtual_servers[&key_of(mark)];
        assert_eq!(*found, foreign);
        assert!(!next.ledger().owned().contains(&key_of(mark)));
    }
}

#[test]
fn marks_stay_over_restarts_and_are_new_without_the_ledger() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let first = started(FakeKernel::default(), &ledger);
    let mode = std::fs::metadata(&ledger).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "others read the key");
    let before = marks(&first);
    let mut kernel = first.dataplane.kernel;
    kernel.mark_key = MarkKey::new([1; 16]);
    let writes = kernel.clone();
    let next = started(kernel, &ledger);
    assert_eq!(marks(&next), before);
    assert_eq!(next.dataplane.kernel.state, writes.state);

    std::fs::remove_file(&ledger).unwrap();
    let last = started(next.dataplane.kernel, &ledger);
    // The old virtual server, which the rules tell, keeps its connections until the drain is over. No rule sends new ones
    // to it.
    let old = &last.dataplane.kernel.state.virtual_servers[&key_of(before[0])];
    assert!(!old.destinations.is_empty());
    assert!(old.destinations.iter().all(|it| it.weight == 0));
    let new = first_mark(MarkKey::new([1; 16]));
    assert!(marks(&last).contains(&new) && marks(&last).len() == 2);
    let rules = rules(&last);
    assert!(rules.contains(&format!("inside-{new:08x}")));
    assert!(!rules.contains(&format!("inside-{:08x}", before[0])));
}

/// Removes the key from the ledger, as if its line were damaged.
fn lose_key(ledger: &Path) {
    let lines = std::fs::read_to_string(ledger).unwrap();
    let kept: String = lines
        .split_inclusive('\n')
        .filter(|line| !line.contains("markKey"))
        .collect();
    assert_ne!(kept, lines);
    std::fs::write(ledger, kept).unwrap();
}

/// Otherwise clients inside would meet rules that set a mark without a virtual server.
#[test]
fn the_virtual_server_of_a_new_mark_exists_before_the_rules_that_set_it() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut kernel = started(FakeKernel::default(), &ledger).dataplane.kernel;
    lose_key(&ledger);
    kernel.mark_key = MarkKey::new([1; 16]);
    // After a virtual server with two destinations.
    kernel.faults.insert(kernel.writes + 3, Fault::Refused);
    let mut next = draining_proxier(kernel, &ledger, DRAIN);
    receive(&mut next, &cluster());
    let applied = next.sync(START).unwrap();
    assert!(matches!(applied.rules, Some(Err(_))));
    let new = key_of(first_mark(MarkKey::new([1; 16])));
    let found = &next.dataplane.kernel.state.virtual_servers[&new];
    assert_eq!(found.destinations.len(), 2);
}

#[test]
fn a_retired_frontend_waits_for_the_connections_of_each_mark() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let with = |ingress: &[&str]| {
        let service = Manifest::service("web")
            .of_type("LoadBalancer")
            .cluster_ip("10.96.3.1")
            .spec("externalTrafficPolicy", "Local")
            .port("http", "TCP", 80);
        let service = ingress
            .iter()
            .fold(service, |service, address| service.ingress(address));
        let [node, _, slice] = cluster();
        [node, service, slice]
    };
    let addresses = ["198.51.100.5", "198.51.100.6"];
    let mut first = draining_proxier(FakeKernel::default(), &ledger, DRAIN);
    receive(&mut first, &with(&addresses));
    first.sync(START).unwrap();
    let old = key_of(marks(&first)[0]);
    let mut kernel = first.dataplane.kernel;
    let destination = kernel.state.virtual_servers[&old]
        .destinations
        .iter()
        .next()
        .unwrap()
        .key;
    let active = Connections {
        active: 1,
        inactive: 0,
    };
    kernel.connections.insert((old, destination), active);
    lose_key(&ledger);
    // A key whose mark is the first in order, so that the old one is not the first that is found.
    let keys = (1..=u8::MAX).map(|byte| MarkKey::new([byte; 16]));
    let mut lower = keys.filter(|key| key_of(first_mark(*key)) < old);
    kernel.mark_key = lower.next().unwrap();
    let mut next = draining_proxier(kernel, &ledger, DRAIN);
    receive(&mut next, &with(&addresses));
    next.sync(START).unwrap();
    receive(&mut next, &with(&addresses[1..]));
    next.sync(START).unwrap();
    let removed = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: [198, 51, 100, 5].into(),
        port: 80,
    };
    let has = |proxier: &Fake| {
        proxier
            .dataplane
            .kernel
            .state
            .virtual_servers
            .contains_key(&removed)
    };
    next.sync(START + Duration::from_secs(3)).unwrap();
    assert!(has(&next));
    next.dataplane.kernel.connections.clear();
    next.sync(START + Duration::from_secs(40)).unwrap();
    next.sync(START + Duration::from_secs(80)).unwrap();
    assert!(!has(&next));
}

/// Connections through the virtual server of a mark without a key, or of a key that was lost, end in their time.
#[test]
fn the_marks_of_earlier_versions_and_of_lost_keys_drain() {
    // The FNV-1a hash of "default/web:http/TCP/V4", and another number.
    for mark in [421_501_566, 0x1234_5678] {
        an_old_mark_drains(mark);
    }
}

fn an_old_mark_drains(mark: u32) {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let key = key_of(mark);
    let line = format!(
        r#"{{"own":{{"server":{{"mark":{mark},"v6":false}},"service":"default/web:http"}}}}"#
    );
    std::fs::write(&ledger, line + "\n").unwrap();
    let mut kernel = FakeKernel::default();
    let old = server(key, "10.244.2.2:8080");
    let destination = old.destinations.iter().next().unwrap().key;
    kernel.state.virtual_servers.insert(key, old);
    let active = Connections {
        active: 1,
        inactive: 0,
    };
    kernel.connections.insert((key, destination), active);
    let mut proxier = started(kernel, &ledger);
    let has_old = |proxier: &Fake| marks(proxier).contains(&mark);
    assert!(has_old(&proxier) && marks(&proxier).len() == 2);
    let found = &proxier.dataplane.kernel.state.virtual_servers[&key];
    assert!(found.destinations.iter().all(|it| it.weight == 0));
    proxier.sync(START + Duration::from_secs(2)).unwrap();
    assert!(has_old(&proxier));
    proxier.dataplane.kernel.connections.clear();
    proxier.sync(START + Duration::from_secs(40)).unwrap();
    assert!(!has_old(&proxier));
}
