//! Computes the Ops that turn the observed state into the desired state.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::ledger::Drains;
use crate::observed::{Observed, ObservedServer};
use crate::op::Op;
use crate::plan::{Desired, VirtualServer};

/// Decides which undesired objects are deleted, and when.
pub struct DeletionRules<'a> {
    /// Returns whether a virtual server is owned; foreign ones are never deleted.
    pub is_ours: &'a dyn Fn(&ipvs::ServiceKey) -> bool,
    /// The draining destinations.
    pub drains: &'a Drains,
}

/// Returns the Ops that lead from `observed` to `desired`, in no particular order.
///
/// Foreign virtual servers stay. Foreign addresses are never in `observed`. If the virtual server
/// has a drain time, a stale destination drains before it is deleted.
///
/// # Cost
/// Linear in the size of both sides.
pub fn diff(desired: &Desired, observed: &Observed, rules: &DeletionRules<'_>) -> Vec<Op> {
    let mut ops = Vec::new();
    let desired_keys = desired.virtual_servers.keys();
    let observed_keys = observed.virtual_servers.keys();
    for key in merged(desired_keys, observed_keys) {
        diff_server(*key, desired, observed, rules, &mut ops);
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
    rules: &DeletionRules<'_>,
    ops: &mut Vec<Op>,
) {
    let wanted = desired.virtual_servers.get(&key);
    let found = observed.virtual_servers.get(&key);
    match (wanted, found) {
        (Some(wanted), Some(found)) => diff_kept_server(wanted, found, rules.drains, ops),
        (Some(wanted), None) => {
            ops.push(Op::AddService(wanted.service));
            let destinations = wanted.destinations.iter();
            ops.extend(destinations.map(|&destination| Op::AddDestination(key, destination)));
        }
        (None, Some(_)) if (rules.is_ours)(&key) => ops.push(Op::DeleteService(key)),
        (None, _) => {}
    }
}

/// Appends the Op for one address, if it differs.
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

/// Sorts `ops` by stage ([`crate::op::Stage`]) and key; Ops for the addresses in `first` come first.
pub fn sort(ops: &mut [Op], first: &BTreeSet<IpAddr>) {
    // No two Ops have the same key. A stable sort would give the same order, and allocate memory for
    // half of up to 100,000 Ops.
    ops.sort_unstable_by_key(|op| {
        let is_first = op.address().is_some_and(|address| first.contains(&address));
        let key = (op.service_key(), op.address(), op.destination_key());
        (!is_first, op.stage(), key)
    });
}

/// Merges two sorted sequences; a value in both appears once.
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

/// Appends the Ops for a virtual server that is both desired and observed.
fn diff_kept_server(
    wanted: &VirtualServer,
    found: &ObservedServer,
    drains: &Drains,
    ops: &mut Vec<Op>,
) {
    if wanted.service != found.service {
        ops.push(Op::SetService(wanted.service));
    }
    // Both sides are sorted by key. Walking them in parallel needs neither a map nor lookups.
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
                ops.extend(stale.and_then(|&stale| removal_step(wanted, stale, drains)));
            }
            Ordering::Equal => {
                let (wanted, found) = (left.next(), right.next());
                let changed = wanted.filter(|&wanted| Some(wanted) != found);
                ops.extend(changed.map(|&destination| Op::SetDestination(key, destination)));
            }
        }
    }
}

/// Returns the next Op for a stale destination; `None` while it drains.
fn removal_step(server: &VirtualServer, stale: ipvs::Destination, drains: &Drains) -> Option<Op> {
    let key = server.service.key;
    let drain = drains.get(&key, &stale.key);
    if drain.is_some_and(|drain| drain.is_over) || server.drain.is_zero() {
        return Some(Op::DeleteDestination(key, stale.key));
    }
    let draining = ipvs::Destination { weight: 0, ..stale };
    // A destination that another program added with weight 0 needs no Op to start draining.
    (draining != stale).then_some(Op::SetDestination(key, draining))
}
