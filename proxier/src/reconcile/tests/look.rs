//! Resyncs that look before they read.

use super::*;

/// The time between two resyncs.
const PERIOD: Duration = Duration::from_secs(30);

fn resync(proxier: &mut Fake, number: u32) -> Applied {
    proxier.resync(START + PERIOD * number).unwrap()
}

#[test]
fn resyncs_read_all_virtual_servers_only_every_ten_minutes_if_nothing_differs() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let reads = proxier.dataplane.kernel.reads;
    for number in 1..=60 {
        assert_eq!(resync(&mut proxier, number).ops, []);
    }
    assert_eq!(proxier.dataplane.kernel.looks, 57);
    assert_eq!(proxier.dataplane.kernel.reads - reads, 3);
}

#[test]
fn the_next_resync_repairs_what_a_look_shows() {
    type Drift = fn(&mut Vec<ipvs_netlink::Destination>);
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    let delete: Drift = |all| all.truncate(all.len() - 1);
    let weight: Drift = |all| all[0].weight += 1;
    let forwarding: Drift = |all| all[0].forwarding = ipvs_netlink::Forwarding::Route;
    for (number, drift) in [delete, weight, forwarding].into_iter().enumerate() {
        let servers = proxier.dataplane.kernel.state.virtual_servers.values_mut();
        servers.for_each(|server| server.destinations.change(drift));
        let applied = resync(&mut proxier, 1 + u32::try_from(number).unwrap());
        assert_eq!(
            applied.drifted.virtual_servers.len(),
            state.virtual_servers.len()
        );
        assert_eq!(proxier.dataplane.kernel.state, state);
    }
    proxier.dataplane.kernel.state.virtual_servers.clear();
    resync(&mut proxier, 5);
    assert_eq!(proxier.dataplane.kernel.state, state);
}

#[test]
fn a_resync_repairs_within_ten_minutes_what_no_look_shows() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    let servers = proxier.dataplane.kernel.state.virtual_servers.values_mut();
    servers.for_each(|server| server.destinations.change(|all| all[0].upper_threshold = 5));
    assert_eq!(resync(&mut proxier, 19).ops, []);
    assert_ne!(resync(&mut proxier, 20).ops, []);
    assert_eq!(proxier.dataplane.kernel.state, state);
}

#[test]
fn a_look_that_shows_the_virtual_servers_does_not_hide_deleted_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    let reads = proxier.dataplane.kernel.reads;
    proxier.dataplane.kernel.state.addresses.clear();
    let applied = resync(&mut proxier, 1);
    assert_eq!(applied.drifted.addresses.len(), state.addresses.len());
    assert_eq!(proxier.dataplane.kernel.state, state);
    assert_eq!(proxier.dataplane.kernel.reads, reads);
}

/// Returns a proxier with 8 virtual servers and 32,000 destinations: only every third resync looks at all.
fn serving_many(ledger: &Path) -> Fake {
    let mut manifests = vec![node()];
    for number in 1..=4 {
        let name = format!("many-{number}");
        let (ip, ingress) = (format!("10.96.4.{number}"), format!("198.51.100.{number}"));
        let slice = Manifest::slice_of(&name).port("dns", "UDP", 53);
        manifests.push(open_service(&name, &ip, &ingress));
        manifests.push(slice.endpoint("10.244.1.1"));
    }
    let mut events = events(&manifests);
    for event in &mut events {
        if let Event::EndpointSlices(Update::Reset(slices)) = event {
            slices.edit(|slice| multiply(slice, 2_700));
        }
    }
    let mut proxier = proxier(FakeKernel::default(), ledger);
    proxier.receive(events);
    assert_eq!(proxier.sync(START).unwrap().failures().count(), 0);
    proxier
}

/// Gives a slice `count` endpoints like its only one.
fn multiply(
    slice: &mut crate::cluster::store::Parsed<crate::cluster::model::EndpointSlice>,
    count: u16,
) {
    let endpoints = &mut slice.object.as_mut().unwrap().endpoints;
    let one = endpoints[0].clone();
    let addresses = (0..count).map(u16::to_be_bytes);
    *endpoints = addresses
        .map(|[high, low]| crate::cluster::model::Endpoint {
            address: [10, 244, high, low].into(),
            ..one.clone()
        })
        .collect();
}

#[test]
fn in_a_large_table_every_third_resync_repairs_what_a_look_at_the_beginning_does_not_show() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving_many(&directory.path().join("ledger"));
    let state = proxier.dataplane.kernel.state.clone();
    assert_eq!(state.virtual_servers.len(), 8);
    for first in [1, 4] {
        let kernel = &mut proxier.dataplane.kernel.state;
        let last = kernel.virtual_servers.keys().last().unwrap();
        let server = kernel.virtual_servers.get_mut(&last).unwrap();
        server.destinations.change(|all| all[0].weight += 1);
        let last = kernel.addresses.keys().last().unwrap();
        kernel.addresses.remove(&last);
        assert_eq!(resync(&mut proxier, first).ops, []);
        assert_eq!(resync(&mut proxier, first + 1).ops, []);
        assert_eq!(resync(&mut proxier, first + 2).ops.len(), 2);
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
        assert_ne!(resync(&mut proxier, number).ops, []);
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
    assert_eq!(applied.drifted.addresses.len(), state.addresses.len());
    assert_eq!(proxier.dataplane.kernel.state, state);
}
