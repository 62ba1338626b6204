//! What a resync reads.

use super::*;

/// The time between two resyncs.
const PERIOD: Duration = Duration::from_secs(30);

fn resync(proxier: &mut Fake, number: u32) -> Applied<Changes> {
    proxier.resync(START + PERIOD * number).unwrap()
}

#[test]
fn a_resync_without_differences_reads_the_table_once_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let (reads, writes) = (
        proxier.dataplane.kernel.reads,
        proxier.dataplane.kernel.writes,
    );
    for number in 1..=60 {
        assert_eq!(resync(&mut proxier, number).changes.ops, []);
    }
    assert_eq!(proxier.dataplane.kernel.reads, reads + 60);
    assert_eq!(proxier.dataplane.kernel.writes, writes);
}

#[test]
fn the_next_resync_repairs_a_small_table() {
    type Drift = fn(&mut Vec<ipvs_netlink::Destination>);
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    let delete: Drift = |all| all.truncate(all.len() - 1);
    let weight: Drift = |all| all[0].weight += 1;
    let forwarding: Drift = |all| all[0].forwarding = ipvs_netlink::Forwarding::Route;
    let threshold: Drift = |all| all[0].upper_threshold = 5;
    for (drift, number) in [delete, weight, forwarding, threshold].into_iter().zip(1..) {
        let servers = proxier.dataplane.kernel.state.virtual_servers.values_mut();
        servers.for_each(|server| server.destinations.change(drift));
        let applied = resync(&mut proxier, number);
        assert_eq!(
            applied.changes.drifted.virtual_servers.len(),
            state.virtual_servers.len()
        );
        assert_eq!(proxier.dataplane.kernel.state, state);
    }
    proxier.dataplane.kernel.state.virtual_servers.clear();
    resync(&mut proxier, 5);
    assert_eq!(proxier.dataplane.kernel.state, state);
}

#[test]
fn equal_virtual_servers_do_not_hide_deleted_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    proxier.dataplane.kernel.state.addresses.clear();
    let applied = resync(&mut proxier, 1);
    assert_eq!(
        applied.changes.drifted.addresses.len(),
        state.addresses.len()
    );
    assert_eq!(proxier.dataplane.kernel.state, state);
}

/// Returns a proxier with 600 virtual servers: a resync reads the destinations of 500.
fn serving_many(ledger: &Path) -> Fake {
    let mut manifests = vec![node()];
    for number in 0..300 {
        let name = format!("many-{number}");
        let (high, low) = (number / 250, number % 250 + 1);
        let (ip, ingress) = (
            format!("10.96.{}.{low}", 4 + high),
            format!("198.51.{high}.{low}"),
        );
        let slice = Manifest::slice_of(&name).port("dns", "UDP", 53);
        manifests.push(open_service(&name, &ip, &ingress));
        manifests.push(slice.endpoint("10.244.1.1"));
    }
    let mut proxier = proxier(FakeKernel::default(), ledger);
    receive(&mut proxier, &manifests);
    assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
    assert_eq!(proxier.dataplane.kernel.state.virtual_servers.len(), 600);
    proxier
}

#[test]
fn in_a_large_table_every_second_resync_reads_the_same_destinations() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving_many(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    for first in [1, 3] {
        let kernel = &mut proxier.dataplane.kernel.state;
        let last = kernel.virtual_servers.keys().last().unwrap();
        let server = kernel.virtual_servers.get_mut(&last).unwrap();
        server.destinations.change(|all| all[0].weight += 1);
        assert_eq!(resync(&mut proxier, first).changes.ops, []);
        assert_eq!(resync(&mut proxier, first + 1).changes.ops.len(), 1);
        assert_eq!(proxier.dataplane.kernel.state, state);
    }
}

#[test]
fn every_resync_repairs_schedulers_and_virtual_servers_of_a_large_table() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving_many(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    for (index, number) in [0, 300, 598].into_iter().zip(1..) {
        let kernel = &mut proxier.dataplane.kernel.state;
        let key = kernel.virtual_servers.keys().nth(index).unwrap();
        let next = kernel.virtual_servers.keys().nth(index + 1).unwrap();
        let server = kernel.virtual_servers.get_mut(&key).unwrap();
        server.definition.scheduler = Some("lc".parse().unwrap());
        kernel.virtual_servers.remove(&next);
        let applied = resync(&mut proxier, number);
        assert_eq!(applied.changes.drifted.virtual_servers, [key, next].into());
        assert_eq!(proxier.dataplane.kernel.state, state);
    }
}

#[test]
fn every_resync_notices_a_flush_of_a_large_table() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving_many(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    for number in 1..=4 {
        proxier.dataplane.kernel.state.virtual_servers.clear();
        assert_ne!(resync(&mut proxier, number).changes.ops, []);
        assert_eq!(proxier.dataplane.kernel.state, state);
    }
}

#[test]
fn a_notification_makes_the_next_resync_read_addresses_however_many_virtual_servers_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving_many(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    proxier.dataplane.kernel.state.addresses.clear();
    proxier.dataplane.distrust_addresses();
    let applied = resync(&mut proxier, 1);
    assert_eq!(
        applied.changes.drifted.addresses.len(),
        state.addresses.len()
    );
    assert_eq!(proxier.dataplane.kernel.state, state);
}
