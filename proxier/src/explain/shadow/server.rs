//! The changes of one virtual server by one Op.

use ipvs_netlink as ipvs;

use super::{Change, ChangeCause, Compared, endpoint};
use crate::cluster::model::Annotations;
use crate::dataplane::ipvs::WantedServer;
use crate::dataplane::ipvs::definition::ServerDefinition;
use crate::dataplane::ipvs::destinations::key_of;
use crate::dataplane::ipvs::op::Op;

/// Returns the changes that `op` makes to the virtual server `key`, each with its cause.
///
/// Empty for the destinations of a new virtual server, because the change that adds it lists them.
pub(super) fn changes(
    op: &Op,
    key: &ipvs::ServiceKey,
    view: &Compared<'_>,
) -> Vec<(ChangeCause, Change)> {
    let server = view.wanted.get(key);
    let observed = view.observed.virtual_servers.get(key);
    let (Some(server), Some(found)) = (server, observed) else {
        return match (op, server) {
            (Op::AddService(_), Some(server)) => vec![added(&server)],
            (Op::DeleteService(_), None) => vec![(ChangeCause::NoService, Change::DeleteServer)],
            (Op::SetDestination(..), None) => vec![(ChangeCause::NoService, Change::RetireServer)],
            _ => Vec::new(),
        };
    };
    let weight_of = |key: ipvs::DestinationKey| {
        let (_, destination) = found.destinations.find(&key)?;
        Some(destination.weight)
    };
    match *op {
        Op::SetService(after) => properties(
            &found.definition,
            &ServerDefinition::of(&after),
            &server,
            view,
        ),
        Op::AddDestination(_, to) => {
            let cause = endpoint::selected((key, &server), to.key, view);
            vec![(cause, Change::AddDestinations(vec![to.key]))]
        }
        Op::SetDestination(_, to) if server.has_destination(&to.key) => {
            let before = weight_of(to.key).unwrap_or_default();
            vec![kept((key, &server), to, before, view)]
        }
        // A stale destination: it drains first (weight 0), or is deleted at once.
        Op::SetDestination(_, ipvs::Destination { key: stale, .. })
        | Op::DeleteDestination(_, stale) => {
            let change = match weight_of(stale) {
                Some(0) => Change::RemoveDrained,
                _ => Change::RemoveDestinations,
            };
            vec![(
                endpoint::rejected((key, &server), stale, view),
                change(vec![stale]),
            )]
        }
        _ => Vec::new(),
    }
}

fn added(server: &WantedServer<'_>) -> (ChangeCause, Change) {
    let cause = server
        .kind
        .map_or(ChangeCause::InsideClients, ChangeCause::Requested);
    let destinations = server.endpoints.iter().map(key_of).collect();
    (cause, Change::AddServer(destinations))
}

/// Returns the change of a destination that stays.
fn kept(
    (key, server): (&ipvs::ServiceKey, &WantedServer<'_>),
    to: ipvs::Destination,
    before: u32,
    view: &Compared<'_>,
) -> (ChangeCause, Change) {
    if before == to.weight {
        return (
            ChangeCause::NotMasqueraded,
            Change::SetForwarding(vec![to.key]),
        );
    }
    let change = Change::SetWeight {
        before,
        after: to.weight,
        destinations: vec![to.key],
    };
    // kube-proxy sets weight 0 only for endpoints that it removes, so an endpoint was selected again.
    let config = view.planner.config();
    let starts_slowly = |all: &Annotations| all.slow_start_secs.is_some_and(|secs| secs > 0);
    let cause = match (before, annotates(server, view, |all| all.weights.is_some())) {
        (0, _) => endpoint::selected((key, server), to.key, view),
        (_, true) => ChangeCause::Annotation("weights"),
        _ if annotates(server, view, starts_slowly) => ChangeCause::Annotation("slow-start"),
        _ if config.weights.is_some() => ChangeCause::Setting("--weights"),
        _ if config.slow_start.is_some() => ChangeCause::Setting("--slow-start"),
        (_, false) => ChangeCause::NoWeights,
    };
    (cause, change)
}

/// Returns the properties in which a virtual server differs.
fn properties(
    before: &ServerDefinition,
    after: &ServerDefinition,
    server: &WantedServer<'_>,
    view: &Compared<'_>,
) -> Vec<(ChangeCause, Change)> {
    let mut changes = Vec::new();
    let mut set = |cause, property, before: String, after: String| {
        if before != after {
            let change = Change::SetServer {
                property,
                before,
                after,
            };
            changes.push((cause, change));
        }
    };
    let scheduler = |service: &ServerDefinition| {
        let name = service.scheduler.as_ref();
        name.map_or("none", ipvs::SchedulerName::as_str).to_owned()
    };
    let affinity =
        |service: &ServerDefinition| match service.flags.contains(ipvs::ServiceFlags::PERSISTENT) {
            true => format!("{} s", service.timeout_secs),
            false => "none".to_owned(),
        };
    let flags = |service: &ServerDefinition| {
        let others = service.flags.without(ipvs::ServiceFlags::PERSISTENT);
        format!("{:#x}", others.bits())
    };
    let rest =
        |service: &ServerDefinition| format!("{:?}, {:?}", service.client_mask, service.engine);
    let cause = match annotates(server, view, |all| all.scheduler.is_some()) {
        true => ChangeCause::Annotation("scheduler"),
        false => ChangeCause::Setting("--ipvs-scheduler"),
    };
    set(cause, "the scheduler", scheduler(before), scheduler(after));
    let property = "session affinity";
    set(
        ChangeCause::Affinity,
        property,
        affinity(before),
        affinity(after),
    );
    let cause = match annotates(server, view, |all| all.scheduler_flags.is_some()) {
        true => ChangeCause::Annotation("scheduler-flags"),
        false => ChangeCause::Setting("the scheduler"),
    };
    set(cause, "the scheduler's flags", flags(before), flags(after));
    set(
        ChangeCause::Affinity,
        "the persistence mask and engine",
        rest(before),
        rest(after),
    );
    changes
}

/// Returns whether the Service of `server` has an annotation of ours that `test` accepts.
fn annotates(
    server: &WantedServer<'_>,
    view: &Compared<'_>,
    test: impl Fn(&Annotations) -> bool,
) -> bool {
    let service = view.snapshot.service(&server.owner().service);
    let annotations = service.and_then(|service| service.annotations.as_deref());
    annotations.is_some_and(test)
}
