//! Computes the Ops that turn the observed state into the desired state.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::dataplane::ipvs::destinations::{key_of, planned};
use crate::dataplane::ipvs::ledger::{Drains, Retired};
use crate::dataplane::ipvs::observed::{Observed, ObservedServer};
use crate::dataplane::ipvs::op::{Op, Ops, Stage};
use crate::dataplane::ipvs::{Wanted, WantedServer};
use crate::plan::Desired;

/// Decides which undesired objects are deleted, and when.
pub struct DeletionRules<'a> {
    /// Returns whether a virtual server is owned; foreign ones are never deleted.
    pub is_ours: &'a dyn Fn(&ipvs::ServiceKey) -> bool,
    /// The draining destinations.
    pub drains: &'a Drains,
    /// The virtual servers that are no longer desired but may keep their connections.
    pub retired: &'a Retired,
}

/// Returns the Ops that lead from `observed` to what is `wanted`, in no particular order.
///
/// Foreign virtual servers stay. Foreign addresses are never in `observed`. If the virtual server
/// has a drain time, a stale destination drains before it is deleted.
///
/// # Cost
/// Linear in the size of both sides.
pub fn diff(
    wanted: Wanted<'_>,
    needs_carrier: bool,
    observed: &Observed,
    rules: &DeletionRules<'_>,
) -> Ops {
    let mut ops = Ops::default();
    let desired = wanted.desired();
    for (key, server) in wanted.iter() {
        let found = observed.virtual_servers.get(&key);
        diff_server(key, &server, found, rules.drains, &mut ops);
    }
    for (key, found) in observed.virtual_servers.iter() {
        if !wanted.contains(&key) {
            diff_stale_server(key, Some(found), rules, &mut ops);
        }
    }
    let leftovers = observed.leftovers.iter().map(|&(address, _)| address);
    let addresses = desired
        .addresses
        .keys()
        .copied()
        .chain(observed.addresses.keys());
    let addresses: BTreeSet<IpAddr> = addresses.chain(leftovers).collect();
    for address in addresses {
        diff_address(address, desired, observed, &mut ops);
    }
    diff_carrier(needs_carrier, desired, observed, &mut ops);
    ops
}

/// Appends the Ops for a desired virtual server and its destinations.
///
/// # Cost
/// Linear in its destinations.
pub(crate) fn diff_server(
    key: ipvs::ServiceKey,
    wanted: &WantedServer<'_>,
    found: Option<&ObservedServer>,
    drains: &Drains,
    ops: &mut Ops,
) {
    match found {
        Some(found) => diff_kept_server(key, wanted, found, drains, ops),
        None => ops.push_server(key, wanted.definition(), wanted.endpoints),
    }
}

/// Appends the Ops for a virtual server that is not desired.
pub(crate) fn diff_stale_server(
    key: ipvs::ServiceKey,
    found: Option<&ObservedServer>,
    rules: &DeletionRules<'_>,
    ops: &mut Ops,
) {
    let Some(found) = found.filter(|_| (rules.is_ours)(&key)) else {
        return;
    };
    match rules.retired.keeps(&key) {
        true => diff_retired_server(key, found, rules.drains, ops),
        false => ops.push(Op::DeleteService(key)),
    }
}

/// Appends the Ops for one address, if it differs.
///
/// A form that is not the configured one is removed only after the configured one exists, that is, in
/// a later round: the Op that adds it may fail.
pub(crate) fn diff_address(address: IpAddr, desired: &Desired, observed: &Observed, ops: &mut Ops) {
    let wanted = desired.addresses.get(&address);
    let found = observed.addresses.get(&address);
    match (wanted, found) {
        (Some(&source), None) => ops.push(Op::AddAddress(address, source)),
        (Some(&source), Some(&found))
            if found != source || observed.outdated.contains(&address) =>
        {
            ops.push(Op::SetAddress(address, source));
        }
        (None, Some(_)) => ops.push(Op::DeleteAddress(address)),
        (Some(_), Some(_)) | (None, None) => {}
    }
    if !is_held(address, desired, observed) {
        let leftovers = observed.leftovers_of(address);
        ops.extend(leftovers.map(|form| Op::DeleteLeftover(address, form)));
    }
}

/// Returns whether the other forms of `address` stay because the configured one does not exist yet.
fn is_held(address: IpAddr, desired: &Desired, observed: &Observed) -> bool {
    desired.addresses.contains_key(&address) && !observed.addresses.contains_key(&address)
}

/// Appends the Op for the carrier, if it differs.
pub(crate) fn diff_carrier(is_needed: bool, desired: &Desired, observed: &Observed, ops: &mut Ops) {
    let holds = |&(address, _): &(IpAddr, _)| is_held(address, desired, observed);
    match observed.carrier {
        None if is_needed => ops.push(Op::AddCarrier),
        Some(carrier) if is_needed && !carrier.is_ready => ops.push(Op::SetCarrier),
        // With the device, the kernel would delete the addresses on it that are still held.
        Some(carrier) if carrier.is_ours && !is_needed && !observed.leftovers.iter().any(holds) => {
            ops.push(Op::DeleteCarrier);
        }
        Some(_) | None => {}
    }
}

/// Sorts `ops` by stage ([`crate::dataplane::ipvs::op::Stage`]) and key; Ops for the addresses in `first`, and the
/// carrier that they need, come first.
pub fn sort(ops: &mut Ops, first: &BTreeSet<IpAddr>) {
    ops.sort(|stage, address| {
        stage == Stage::Carrier || address.is_some_and(|address| first.contains(&address))
    });
}

/// Appends the Ops for a virtual server that is both desired and observed.
fn diff_kept_server(
    key: ipvs::ServiceKey,
    wanted: &WantedServer<'_>,
    found: &ObservedServer,
    drains: &Drains,
    ops: &mut Ops,
) {
    let definition = wanted.definition();
    if definition != found.definition {
        ops.push(Op::SetService(definition.at(key)));
    }
    if found.destinations.share(wanted.endpoints) {
        return;
    }
    // Both sides are sorted by key. Walking them in parallel needs neither a map nor lookups.
    let mut left = wanted.endpoints.iter().peekable();
    let mut right = found.destinations.iter().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(wanted), Some(found)) => key_of(wanted).cmp(&found.key),
        };
        match order {
            Ordering::Less => {
                let new = left.next();
                ops.extend(new.map(|endpoint| Op::AddDestination(key, planned(endpoint))));
            }
            Ordering::Greater => {
                let stale = right.next();
                ops.extend(stale.and_then(|stale| removal_step(key, wanted, stale, drains)));
            }
            Ordering::Equal => {
                let (wanted, found) = (left.next().map(planned), right.next());
                let changed = wanted.filter(|wanted| Some(*wanted) != found);
                ops.extend(changed.map(|destination| Op::SetDestination(key, destination)));
            }
        }
    }
}

/// Appends the Ops that keep new connections from a retired virtual server.
fn diff_retired_server(
    key: ipvs::ServiceKey,
    found: &ObservedServer,
    drains: &Drains,
    ops: &mut Ops,
) {
    for destination in found.destinations.iter() {
        let drain = drains.get(&key, &destination.key);
        if drain.is_some_and(|drain| drain.is_over) {
            ops.push(Op::DeleteDestination(key, destination.key));
        } else if destination.weight > 0 {
            let draining = ipvs::Destination {
                weight: 0,
                ..destination
            };
            ops.push(Op::SetDestination(key, draining));
        }
    }
}

/// Returns the next Op for a stale destination; `None` while it drains.
fn removal_step(
    key: ipvs::ServiceKey,
    server: &WantedServer<'_>,
    stale: ipvs::Destination,
    drains: &Drains,
) -> Option<Op> {
    let drain = drains.get(&key, &stale.key);
    if drain.is_some_and(|drain| drain.is_over) || server.plan.profile.drain.is_zero() {
        return Some(Op::DeleteDestination(key, stale.key));
    }
    let draining = ipvs::Destination { weight: 0, ..stale };
    // A destination that another program added with weight 0 needs no Op to start draining.
    (draining != stale).then_some(Op::SetDestination(key, draining))
}
