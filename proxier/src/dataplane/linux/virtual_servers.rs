//! Virtual servers and destinations.

use ipvs_netlink as ipvs;
use ipvs_netlink::Change;

use crate::dataplane::{Failure, Outcome};
use crate::observed::{Connections, CountedServer, ObservedServer};
use crate::op::Op;

/// Calls `each` for every virtual server of the namespace.
pub(super) fn walk(
    client: &mut ipvs::Client,
    each: &mut dyn FnMut(CountedServer),
) -> ipvs::Result<()> {
    client.walk(|entry, destinations| each(found(entry.service, destinations)))
}

/// Reads one virtual server; `None` if it does not exist.
pub(super) fn find(
    client: &mut ipvs::Client,
    key: &ipvs::ServiceKey,
) -> ipvs::Result<Option<CountedServer>> {
    let entry = match client.service(key) {
        Ok(entry) => entry,
        Err(error) if error.is_no_such_service() => return Ok(None),
        Err(error) => return Err(error),
    };
    let destinations = client.destinations(key)?;
    Ok(Some(found(entry.service, &destinations)))
}

fn found(service: ipvs::Service, destinations: &[ipvs::DestinationEntry]) -> CountedServer {
    let mut entries: Vec<&ipvs::DestinationEntry> = destinations.iter().collect();
    // The kernel lists the newest destination first, and one twice that moved during the dump.
    entries.sort_by_key(|entry| entry.destination.key);
    entries.dedup_by_key(|entry| entry.destination.key);
    let connections = |entry: &&ipvs::DestinationEntry| Connections {
        active: entry.active_connections,
        inactive: entry.inactive_connections,
    };
    let destinations: Vec<_> = entries.iter().map(|entry| entry.destination).collect();
    CountedServer {
        server: ObservedServer {
            service,
            destinations: destinations.into(),
        },
        connections: entries.iter().map(connections).collect(),
    }
}

/// How many Ops the client gets at a time, so that memory does not grow with their number. A multiple
/// of the 128 that it puts into one datagram, so that the number of system calls stays minimal.
const OPS_AT_A_TIME: usize = 4_096;

/// Applies `ops`, which all concern virtual servers, and appends their outcomes.
///
/// If the socket fails, all Ops from that request on fail: whether they took effect is unknown.
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
