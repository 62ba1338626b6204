//! Virtual servers and destinations.

use std::collections::BTreeMap;

use ipvs_netlink as ipvs;
use ipvs_netlink::Change;

use crate::dataplane::{Failure, Outcome};
use crate::observed::{ObservedDestination, ObservedServer};
use crate::op::Op;

/// Every virtual server of the namespace.
pub(super) fn observe(
    client: &mut ipvs::Client,
) -> Result<BTreeMap<ipvs::ServiceKey, ObservedServer>, Failure> {
    // Collected, a map has no half-empty nodes.
    let mut servers = Vec::new();
    client.walk(|entry, destinations| {
        servers.push((entry.service.key, server(entry.service, destinations)));
    })?;
    Ok(servers.into_iter().collect())
}

/// One virtual server, if it exists.
pub(super) fn observe_one(
    client: &mut ipvs::Client,
    key: &ipvs::ServiceKey,
) -> ipvs::Result<Option<ObservedServer>> {
    let entry = match client.service(key) {
        Ok(entry) => entry,
        Err(error) if error.is_no_such_service() => return Ok(None),
        Err(error) => return Err(error),
    };
    let destinations = client.destinations(key)?;
    Ok(Some(server(entry.service, &destinations)))
}

fn server(service: ipvs::Service, destinations: &[ipvs::DestinationEntry]) -> ObservedServer {
    let observed = |entry: &ipvs::DestinationEntry| ObservedDestination {
        destination: entry.destination,
        active_connections: entry.active_connections,
        inactive_connections: entry.inactive_connections,
    };
    let mut destinations: Vec<ObservedDestination> = destinations.iter().map(observed).collect();
    // The kernel lists the newest first, and twice what moved while it was being listed.
    destinations.sort_by_key(|entry| entry.destination.key);
    destinations.dedup_by_key(|entry| entry.destination.key);
    ObservedServer {
        service,
        destinations,
    }
}

/// `ops` as changes of the IPVS table; `None` when one of them is none.
pub(super) fn changes(ops: &[Op]) -> Option<Vec<Change>> {
    ops.iter().map(change).collect()
}

fn change(op: &Op) -> Option<Change> {
    Some(match *op {
        Op::AddService(service) => Change::AddService(service),
        Op::SetService(service) => Change::SetService(service),
        Op::DeleteService(key) => Change::DeleteService(key),
        Op::AddDestination(key, destination) => Change::AddDestination(key, destination),
        Op::SetDestination(key, destination) => Change::SetDestination(key, destination),
        Op::DeleteDestination(key, destination) => Change::DeleteDestination(key, destination),
        Op::AddAddress(..) | Op::SetAddress(..) | Op::DeleteAddress(_) => return None,
    })
}

/// Applies `changes`; when the socket fails none is known to have taken effect.
pub(super) fn apply(client: &mut ipvs::Client, changes: &[Change]) -> Vec<Outcome> {
    match client.apply(changes) {
        Ok(outcomes) => outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(|error| Failure::from(*error)))
            .collect(),
        Err(error) => {
            let failure = Failure::from(error);
            changes.iter().map(|_| Err(failure.clone())).collect()
        }
    }
}
