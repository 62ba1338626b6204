//! Virtual servers and destinations.

use ipvs_netlink as ipvs;
use ipvs_netlink::Change;

use crate::dataplane::{Failure, Outcome};
use crate::observed::{Connections, Found, ObservedServer};
use crate::op::Op;

/// Shows every virtual server of the namespace to `each`.
pub(super) fn walk(client: &mut ipvs::Client, each: &mut dyn FnMut(Found)) -> ipvs::Result<()> {
    client.walk(|entry, destinations| each(found(entry.service, destinations)))
}

/// One virtual server, if it exists.
pub(super) fn find(
    client: &mut ipvs::Client,
    key: &ipvs::ServiceKey,
) -> ipvs::Result<Option<Found>> {
    let entry = match client.service(key) {
        Ok(entry) => entry,
        Err(error) if error.is_no_such_service() => return Ok(None),
        Err(error) => return Err(error),
    };
    let destinations = client.destinations(key)?;
    Ok(Some(found(entry.service, &destinations)))
}

fn found(service: ipvs::Service, destinations: &[ipvs::DestinationEntry]) -> Found {
    let mut entries: Vec<&ipvs::DestinationEntry> = destinations.iter().collect();
    // The kernel lists the newest first, and twice what moved while it was being listed.
    entries.sort_by_key(|entry| entry.destination.key);
    entries.dedup_by_key(|entry| entry.destination.key);
    let connections = |entry: &&ipvs::DestinationEntry| Connections {
        active: entry.active_connections,
        inactive: entry.inactive_connections,
    };
    let destinations: Vec<_> = entries.iter().map(|entry| entry.destination).collect();
    Found {
        server: ObservedServer {
            service,
            destinations: destinations.into(),
        },
        connections: entries.iter().map(connections).collect(),
    }
}

/// How many Ops are handed to the client at a time, so that memory does not grow with their number. A
/// multiple of the 128 that it puts into one datagram: the system calls stay as few.
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
