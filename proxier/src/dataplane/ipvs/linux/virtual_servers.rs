//! Virtual servers and destinations in the kernel.

use ipvs_netlink as ipvs;
use ipvs_netlink::Change;

use super::revival::{self, RemovalOrder};
use crate::dataplane::ipvs::definition::ServerDefinition;
use crate::dataplane::ipvs::destinations::Destinations;
use crate::dataplane::ipvs::observed::{Connections, CountedServer, ObservedServer};
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::{Failure, Outcome};

/// Calls `each` for every virtual server of the namespace. None of `known` is missing.
pub(super) fn walk(
    client: &mut ipvs::Client,
    known: &mut dyn Iterator<Item = ipvs::ServiceKey>,
    each: &mut dyn FnMut(CountedServer),
) -> ipvs::Result<()> {
    client.walk(known, |entry, destinations| {
        each(counted(entry.service, destinations))
    })
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
    Ok(Some(counted(entry.service, &destinations)))
}

/// Reads the destinations of a virtual server; none if it does not exist.
pub(super) fn destinations(
    client: &mut ipvs::Client,
    key: &ipvs::ServiceKey,
) -> ipvs::Result<Destinations> {
    let found = client.destinations(key)?;
    Ok(sorted(&found)
        .iter()
        .map(|entry| entry.destination)
        .collect())
}

/// Returns destinations sorted by key, each once.
///
/// The kernel lists the newest destination first. If the list changes during the dump, an entry can appear twice.
fn sorted(destinations: &[ipvs::DestinationEntry]) -> Vec<&ipvs::DestinationEntry> {
    let mut entries: Vec<_> = destinations.iter().collect();
    entries.sort_by_key(|entry| entry.destination.key);
    entries.dedup_by_key(|entry| entry.destination.key);
    entries
}

/// Returns a virtual server with its destinations sorted by key.
fn counted(service: ipvs::Service, destinations: &[ipvs::DestinationEntry]) -> CountedServer {
    let entries = sorted(destinations);
    let connections = |entry: &&ipvs::DestinationEntry| Connections {
        active: entry.active_connections,
        inactive: entry.inactive_connections,
    };
    let destinations: Vec<_> = entries.iter().map(|entry| entry.destination).collect();
    CountedServer {
        key: service.key,
        server: ObservedServer {
            definition: ServerDefinition::of(&service),
            destinations: destinations.into(),
        },
        connections: entries.iter().map(connections).collect(),
    }
}

/// The number of Ops in one call of the client: it bounds the memory for their conversion.
///
/// A multiple of the client's 128 requests in a datagram, so that every datagram but the last is full.
const CHUNK_OPS: usize = 1_024;

/// Applies `ops`, which must all concern virtual servers, and appends their outcomes.
///
/// Many adjacent additions of destinations are made in another order ([`revival`]). If the socket fails,
/// the Ops of that call and all later ones fail. Those of that call may have taken effect.
pub(super) fn apply(
    client: &mut ipvs::Client,
    order: &RemovalOrder,
    ops: &[Op],
    outcomes: &mut Vec<Outcome>,
) {
    let first = outcomes.len();
    outcomes.resize(first + ops.len(), Ok(()));
    let mut outcomes = &mut outcomes[first..];
    let is_addition = |op: &Op| matches!(op, Op::AddDestination(..));
    // Fewer Ops share datagrams, whatever they do. After a start no order is known.
    let has_many =
        order.is_known() && ops.iter().filter(|op| is_addition(op)).count() >= revival::MANY;
    for run in ops.chunk_by(|one, next| !has_many || is_addition(one) == is_addition(next)) {
        let result = match has_many && run.first().is_some_and(is_addition) {
            true => apply_run(client, run, order.newest_first(run), outcomes),
            false => apply_run(client, run, 0..run.len(), outcomes),
        };
        if let Err(error) = result {
            outcomes.fill(Err(Box::new(error.into())));
            return;
        }
        outcomes = &mut outcomes[run.len()..];
    }
}

/// Applies `ops` in the order of these positions. If the socket fails, outcomes of earlier calls are lost.
fn apply_run(
    client: &mut ipvs::Client,
    ops: &[Op],
    order: impl IntoIterator<Item = usize>,
    outcomes: &mut [Outcome],
) -> ipvs::Result<()> {
    let mut order = order.into_iter();
    // All calls use the same memory: musl returns it to the kernel whenever it is freed.
    let (mut positions, mut changes): (Vec<usize>, Vec<Change>) = Default::default();
    loop {
        positions.clear();
        positions.extend(order.by_ref().take(CHUNK_OPS));
        if positions.is_empty() {
            return Ok(());
        }
        changes.clear();
        changes.reserve(positions.len());
        changes.extend(
            positions
                .iter()
                .filter_map(|&position| change(&ops[position])),
        );
        let results = client.apply(&changes)?;
        for (&position, result) in positions.iter().zip(results) {
            outcomes[position] = result.map_err(|error| Box::new(Failure::from(*error)));
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
        Op::AddAddress(..)
        | Op::SetAddress(..)
        | Op::DeleteAddress(_)
        | Op::DeleteLeftover(..)
        | Op::AddCarrier
        | Op::SetCarrier
        | Op::DeleteCarrier => return None,
    })
}
