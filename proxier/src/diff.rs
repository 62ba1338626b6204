//! The difference of the desired and the observed state, as Ops.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::ledger::Drains;
use crate::observed::{Observed, ObservedServer};
use crate::op::Op;
use crate::plan::{Desired, VirtualServer};

/// The facts beside both states on which the difference depends.
pub struct Terms<'a> {
    /// Returns whether a stale virtual server may be deleted.
    pub is_ours: &'a dyn Fn(&ipvs::ServiceKey) -> bool,
    /// The draining destinations.
    pub drains: &'a Drains,
}

/// Returns the Ops that lead from `observed` to `desired`, in arbitrary order.
///
/// Stale virtual servers are deleted only if they are ours. `observed` has no foreign addresses. A
/// stale destination drains first, unless its virtual server has no time for that.
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

/// Appends the Ops for one virtual server and its destinations.
///
/// # Cost
/// Linear in its destinations.
pub(crate) fn diff_server(
    key: ipvs::ServiceKey,
    desired: &Desired,
    observed: &Observed,
    terms: &Terms<'_>,
    ops: &mut Vec<Op>,
) {
    let wanted = desired.virtual_servers.get(&key);
    let found = observed.virtual_servers.get(&key);
    match (wanted, found) {
        (Some(wanted), Some(found)) => diff_existing(wanted, found, terms.drains, ops),
        (Some(wanted), None) => {
            ops.push(Op::AddService(wanted.service));
            let destinations = wanted.destinations.iter();
            ops.extend(destinations.map(|&destination| Op::AddDestination(key, destination)));
        }
        (None, Some(_)) if (terms.is_ours)(&key) => ops.push(Op::DeleteService(key)),
        (None, _) => {}
    }
}

/// Appends the Op for one address, if it needs one.
pub(crate) fn diff_address(
    address: IpAddr,
    desired: &Desired,
    observed: &Observed,
    ops: &mut Vec<Op>,
) {
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

/// Sorts `ops` into the order in which to apply them: by stage ([`crate::op::Stage`]), then by key.
///
/// All Ops for the addresses in `first` come before all others.
pub fn sort(ops: &mut [Op], first: &BTreeSet<IpAddr>) {
    // No two Ops have the same sort key, so an unstable sort, which needs no memory, suffices.
    ops.sort_unstable_by_key(|op| {
        let is_first = op.address().is_some_and(|address| first.contains(&address));
        let key = (op.service_key(), op.address(), op.destination_key());
        (!is_first, op.stage(), key)
    });
}

/// Merges two ordered sequences. A value of both appears once.
fn merged<'a, T: Ord + 'a>(
    left: impl Iterator<Item = &'a T>,
    right: impl Iterator<Item = &'a T>,
) -> impl Iterator<Item = &'a T> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || match (left.peek(), right.peek()) {
        (Some(from_left), Some(from_right)) => match from_left.cmp(from_right) {
            Ordering::Less => left.next(),
            Ordering::Greater => right.next(),
            Ordering::Equal => {
                right.next();
                left.next()
            }
        },
        (Some(_), None) => left.next(),
        (None, _) => right.next(),
    })
}

/// Appends the Ops for a virtual server that is desired and exists.
fn diff_existing(
    wanted: &VirtualServer,
    found: &ObservedServer,
    drains: &Drains,
    ops: &mut Vec<Op>,
) {
    if wanted.service != found.service {
        ops.push(Op::SetService(wanted.service));
    }
    // Both lists are ordered by key, so one pass over both finds all differences.
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
                let stale = right.next();
                ops.extend(stale.and_then(|&stale| drain_or_delete(wanted, stale, drains)));
            }
            Ordering::Equal => {
                let (wanted, found) = (left.next(), right.next());
                let changed = wanted.filter(|&wanted| Some(wanted) != found);
                ops.extend(changed.map(|&destination| Op::SetDestination(key, destination)));
            }
        }
    }
}

/// Returns the Op for a stale destination; `None` while it drains.
fn drain_or_delete(
    server: &VirtualServer,
    stale: ipvs::Destination,
    drains: &Drains,
) -> Option<Op> {
    let key = server.service.key;
    let is_over = drains
        .get(&key, &stale.key)
        .is_some_and(|drain| drain.is_over);
    if is_over || server.drain.is_zero() {
        return Some(Op::DeleteDestination(key, stale.key));
    }
    let draining = ipvs::Destination { weight: 0, ..stale };
    (draining != stale).then_some(Op::SetDestination(key, draining))
}
