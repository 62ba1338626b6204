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

/// How many Ops are encoded at a time: memory does not grow with their number, and a hundredth of a
/// second's work needs no more.
const OPS_AT_A_TIME: usize = 4_096;

/// Applies `ops`, all of which are about virtual servers, and adds to `outcomes` what became of them.
/// When the socket fails none of those that were on their way, or would have followed, is known to
/// have taken effect.
pub(super) fn apply(client: &mut ipvs::Client, ops: &[Op], outcomes: &mut Vec<Outcome>) {
    let end = outcomes.len() + ops.len();
    for ops in ops.chunks(OPS_AT_A_TIME) {
        let changes: Vec<Change> = ops.iter().filter_map(change).collect();
        match client.apply(&changes) {
            Ok(results) => {
                let failed = |error: Box<ipvs::Error>| Box::new(Failure::from(*error));
                outcomes.extend(results.into_iter().map(|result| result.map_err(failed)));
            }
            Err(error) => {
                outcomes.resize(end, Err(Box::new(error.into())));
                return;
            }
        }
    }
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
