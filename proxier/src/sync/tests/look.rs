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
    let reads = proxier.dataplane.reads;
    for number in 1..=60 {
        assert_eq!(resync(&mut proxier, number).ops, []);
    }
    assert_eq!(proxier.dataplane.looks, 57);
    assert_eq!(proxier.dataplane.reads - reads, 3);
}

#[test]
fn the_next_resync_repairs_what_a_look_shows() {
    type Drift = fn(&mut Vec<ipvs_netlink::Destination>);
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.state.clone();
    let delete: Drift = |all| all.truncate(all.len() - 1);
    let weight: Drift = |all| all[0].weight += 1;
    let forwarding: Drift = |all| all[0].forwarding = ipvs_netlink::Forwarding::Route;
    for (number, drift) in [delete, weight, forwarding].into_iter().enumerate() {
        let servers = proxier.dataplane.state.virtual_servers.values_mut();
        servers.for_each(|server| server.destinations.change(drift));
        let applied = resync(&mut proxier, 1 + u32::try_from(number).unwrap());
        assert_eq!(
            applied.drifted.virtual_servers.len(),
            state.virtual_servers.len()
        );
        assert_eq!(proxier.dataplane.state, state);
    }
    proxier.dataplane.state.virtual_servers.clear();
    resync(&mut proxier, 5);
    assert_eq!(proxier.dataplane.state, state);
}

#[test]
fn a_resync_repairs_within_ten_minutes_what_no_look_shows() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.state.clone();
    let servers = proxier.dataplane.state.virtual_servers.values_mut();
    servers.for_each(|server| server.destinations.change(|all| all[0].upper_threshold = 5));
    assert_eq!(resync(&mut proxier, 19).ops, []);
    assert_ne!(resync(&mut proxier, 20).ops, []);
    assert_eq!(proxier.dataplane.state, state);
}

#[test]
fn a_look_that_shows_the_virtual_servers_does_not_hide_deleted_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let mut proxier = serving(&directory.path().join("ledger"));
    let state = proxier.dataplane.state.clone();
    let reads = proxier.dataplane.reads;
    proxier.dataplane.state.addresses.clear();
    let applied = resync(&mut proxier, 1);
    assert_eq!(applied.drifted.addresses.len(), state.addresses.len());
    assert_eq!(proxier.dataplane.state, state);
    assert_eq!(proxier.dataplane.reads, reads);
}
