//! What has to change so that the machine becomes what it should be.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::op::Op;
use crate::plan::{Desired, VirtualServer};

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Every virtual server of the network namespace, ours or not.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, ObservedServer>,
    /// The addresses that we made local, with their preferred source.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
}

/// A virtual server that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedServer {
    /// Its definition.
    pub service: ipvs::Service,
    /// Its destinations, ordered by key, each key once.
    pub destinations: Vec<ObservedDestination>,
}

/// A destination that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedDestination {
    /// Its definition.
    pub destination: ipvs::Destination,
    /// Connections in an active state.
    pub active_connections: u32,
    /// Other connections.
    pub inactive_connections: u32,
}

/// The changes that lead from `observed` to `desired`, in the order to apply them.
///
/// Of what exists and is not wanted, only what is `owned` goes: foreign virtual servers stay.
/// Foreign addresses never are in `observed`. The order is that of [`crate::op::Stage`], and by key
/// inside a stage.
///
/// # Cost
/// Linear in the size of both sides.
pub fn diff(desired: &Desired, observed: &Observed, owned: &BTreeSet<ipvs::ServiceKey>) -> Vec<Op> {
    let mut ops = Vec::new();
    for (key, wanted) in &desired.virtual_servers {
        match observed.virtual_servers.get(key) {
            None => {
                ops.push(Op::AddService(wanted.service));
                ops.extend(
                    wanted
                        .destinations
                        .iter()
                        .map(|&dest| Op::AddDestination(*key, dest)),
                );
            }
            Some(found) => kept_server(wanted, found, &mut ops),
        }
    }
    for key in observed.virtual_servers.keys() {
        if owned.contains(key) && !desired.virtual_servers.contains_key(key) {
            ops.push(Op::DeleteService(*key));
        }
    }
    for (&address, &source) in &desired.addresses {
        match observed.addresses.get(&address) {
            None => ops.push(Op::AddAddress(address, source)),
            Some(&found) if found != source => ops.push(Op::SetAddress(address, source)),
            Some(_) => {}
        }
    }
    for &address in observed.addresses.keys() {
        if !desired.addresses.contains_key(&address) {
            ops.push(Op::DeleteAddress(address));
        }
    }
    // Stable, so that keys stay in order inside a stage.
    ops.sort_by_key(Op::stage);
    ops
}

fn kept_server(wanted: &VirtualServer, found: &ObservedServer, ops: &mut Vec<Op>) {
    let key = wanted.service.key;
    if wanted.service != found.service {
        ops.push(Op::SetService(wanted.service));
    }
    // Both sides are ordered by key: walk them side by side.
    let mut wanted = wanted.destinations.iter().peekable();
    let mut found = found
        .destinations
        .iter()
        .map(|entry| &entry.destination)
        .peekable();
    loop {
        let order = match (wanted.peek(), found.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(wanted), Some(found)) => wanted.key.cmp(&found.key),
        };
        match order {
            Ordering::Less => {
                ops.extend(
                    wanted
                        .next()
                        .map(|&destination| Op::AddDestination(key, destination)),
                );
            }
            Ordering::Greater => {
                ops.extend(
                    found
                        .next()
                        .map(|gone| Op::DeleteDestination(key, gone.key)),
                );
            }
            Ordering::Equal => {
                let (wanted, found) = (wanted.next(), found.next());
                let changed = wanted.filter(|&wanted| Some(wanted) != found);
                ops.extend(changed.map(|&destination| Op::SetDestination(key, destination)));
            }
        }
    }
}
