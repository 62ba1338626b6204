//! What has to change so that the machine becomes what it should be.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::ledger::Drains;
use crate::observed::{Observed, ObservedServer};
use crate::op::Op;
use crate::plan::{Desired, VirtualServer};

/// What both sides are compared under.
pub struct Terms<'a> {
    /// Whether a virtual server that is not wanted is ours to delete.
    pub is_ours: &'a dyn Fn(&ipvs::ServiceKey) -> bool,
    /// The destinations on their way out.
    pub drains: &'a Drains,
}

/// The changes that lead from `observed` to `desired`, in no particular order.
///
/// Of what exists and is not wanted, only what is ours goes: foreign virtual servers stay. Foreign
/// addresses never are in `observed`. A destination that is not wanted any more drains first where
/// its virtual server says so.
///
/// # Cost
/// Linear in the size of both sides.
pub fn diff(desired: &Desired, observed: &Observed, terms: &Terms<'_>) -> Vec<Op> {
    let mut ops = Vec::new();
    let wanted = desired.virtual_servers.keys();
    let found = observed.virtual_servers.keys();
    for key in merged(wanted, found) {
        diff_server(*key, desired, observed, terms, &mut ops);
    }
    for address in merged(desired.addresses.keys(), observed.addresses.keys()) {
        diff_address(*address, desired, observed, &mut ops);
    }
    ops
}

/// The changes of one virtual server and its destinations.
///
/// # Cost
/// Linear in its destinations.
pub fn diff_server(
    key: ipvs::ServiceKey,
    desired: &Desired,
    observed: &Observed,
    terms: &Terms<'_>,
    ops: &mut Vec<Op>,
) {
    let wanted = desired.virtual_servers.get(&key);
    let found = observed.virtual_servers.get(&key);
    match (wanted, found) {
        (Some(wanted), Some(found)) => kept_server(wanted, found, terms.drains, ops),
        (Some(wanted), None) => {
            ops.push(Op::AddService(wanted.service));
            let destinations = wanted.destinations.iter();
            ops.extend(destinations.map(|&destination| Op::AddDestination(key, destination)));
        }
        (None, Some(_)) if (terms.is_ours)(&key) => ops.push(Op::DeleteService(key)),
        (None, _) => {}
    }
}

/// The change of one address.
pub fn diff_address(address: IpAddr, desired: &Desired, observed: &Observed, ops: &mut Vec<Op>) {
    let wanted = desired.addresses.get(&address);
    let found = observed.addresses.get(&address);
    match (wanted, found) {
        (Some(&source), None) => ops.push(Op::AddAddress(address, source)),
        (Some(&source), Some(&found)) if found != source => {
            ops.push(Op::SetAddress(address, source));
        }
        (None, Some(_)) => ops.push(Op::DeleteAddress(address)),
        (Some(_), Some(_)) | (None, None) => {}
    }
}

/// Puts `ops` into the order to apply them in: stage by stage ([`crate::op::Stage`]) and by key,
/// with everything that concerns the addresses in `first` before the rest.
pub fn sort(ops: &mut [Op], first: &BTreeSet<IpAddr>) {
    // No two have the same key, so that sorting needs no memory to be stable.
    ops.sort_unstable_by_key(|op| {
        let is_first = op.address().is_some_and(|address| first.contains(&address));
        let key = (op.service_key(), op.address(), op.destination_key());
        (!is_first, op.stage(), key)
    });
}

/// Both of two ordered sequences, in order and each value once.
fn merged<'a, T: Ord + 'a>(
    one: impl Iterator<Item = &'a T>,
    other: impl Iterator<Item = &'a T>,
) -> impl Iterator<Item = &'a T> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(left), Some(right)) => match left.cmp(right) {
            Ordering::Less => one.next(),
            Ordering::Greater => other.next(),
            Ordering::Equal => {
                other.next();
                one.next()
            }
        },
        (Some(_), None) => one.next(),
        (None, _) => other.next(),
    })
}

fn kept_server(wanted: &VirtualServer, found: &ObservedServer, drains: &Drains, ops: &mut Vec<Op>) {
    if wanted.service != found.service {
        ops.push(Op::SetService(wanted.service));
    }
    // Both sides are ordered by key: walk them side by side.
    let mut left = wanted.destinations.iter().peekable();
    let mut right = found.destinations.iter().peekable();
    let key = wanted.service.key;
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(wanted), Some(found)) => wanted.key.cmp(&found.key),
        };
        match order {
            Ordering::Less => {
                let new = left.next();
                ops.extend(new.map(|&destination| Op::AddDestination(key, destination)));
            }
            Ordering::Greater => {
                let unwanted = right.next();
                ops.extend(unwanted.and_then(|&unwanted| send_off(wanted, unwanted, drains)));
            }
            Ordering::Equal => {
                let (wanted, found) = (left.next(), right.next());
                let changed = wanted.filter(|&wanted| Some(wanted) != found);
                ops.extend(changed.map(|&destination| Op::SetDestination(key, destination)));
            }
        }
    }
}

/// The next step of a destination that is not wanted any more; `None` while it is to be left alone.
fn send_off(server: &VirtualServer, unwanted: ipvs::Destination, drains: &Drains) -> Option<Op> {
    let key = server.service.key;
    let is_over = match drains.get(&key, &unwanted.key) {
        Some(drain) => drain.is_over,
        None => false,
    };
    if is_over || server.drain.is_zero() {
        return Some(Op::DeleteDestination(key, unwanted.key));
    }
    let quiet = ipvs::Destination {
        weight: 0,
        ..unwanted
    };
    (quiet != unwanted).then_some(Op::SetDestination(key, quiet))
}
