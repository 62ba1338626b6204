//! Finds the reason why an endpoint is, or is not, a destination.

use ipvs_netlink as ipvs;

use super::{ChangeCause, Compared};
use crate::cluster::model::{Endpoint, EndpointSlice, TrafficPolicy};
use crate::dataplane::ipvs::WantedServer;
use crate::plan::frontend::Frontend;

/// Returns why `server` gets the destination `key`.
pub(super) fn selected(
    server: (&ipvs::ServiceKey, &WantedServer<'_>),
    key: ipvs::DestinationKey,
    view: &Compared<'_>,
) -> ChangeCause {
    match listed(server, key, view) {
        Some(endpoint) if !endpoint.is_ready => ChangeCause::LastResort,
        _ => ChangeCause::Ready,
    }
}

/// Returns why `server` must not have the destination `key`.
pub(super) fn rejected(
    (frontend, server): (&ipvs::ServiceKey, &WantedServer<'_>),
    key: ipvs::DestinationKey,
    view: &Compared<'_>,
) -> ChangeCause {
    let Some(endpoint) = listed((frontend, server), key, view) else {
        let lost = Frontend::of(frontend);
        let mut losers = lost.iter().flat_map(|it| view.planner.losers(it));
        let rival = losers.find(|loser| loser.has_endpoint(key.address, key.port));
        return rival.map_or(ChangeCause::Unlisted, |rival| {
            ChangeCause::Contested(rival.owner.service.clone())
        });
    };
    // The reasons in the planner's order: it applies the policy before it looks at states and locations.
    let policy = server.plan.profile.access.policy;
    let node_name = &view.planner.config().node_name;
    if let Some(kind) = server.kind
        && policy == TrafficPolicy::Local
        && !endpoint.is_on(node_name)
    {
        return match server.endpoints.is_empty() {
            true => ChangeCause::NoLocalEndpoint(kind),
            false => ChangeCause::NotLocal(kind, endpoint.location.node.clone()),
        };
    }
    if !endpoint.is_ready {
        return match endpoint.is_serving && endpoint.is_terminating {
            true => ChangeCause::Terminating,
            false => ChangeCause::NotReady,
        };
    }
    let service = view.snapshot.service(&server.owner().service);
    let annotations = service.and_then(|service| service.annotations.as_deref());
    match annotations.is_some_and(|annotations| annotations.topology_keys.is_some()) {
        true => ChangeCause::TopologyKeys,
        false => ChangeCause::Hints,
    }
}

/// Returns the endpoint of `server`'s Service port at `key`. If it is listed twice, its better state counts.
fn listed<'a>(
    (frontend, server): (&ipvs::ServiceKey, &WantedServer<'_>),
    key: ipvs::DestinationKey,
    view: &Compared<'a>,
) -> Option<&'a Endpoint> {
    // A firewall mark has no protocol; its port's name identifies the port.
    let protocol = Frontend::of(frontend).map(|frontend| frontend.protocol);
    let slices = view.snapshot.slices(&server.owner().service);
    let listens = |slice: &&EndpointSlice| {
        slice.ports.iter().any(|port| {
            port.name == server.owner().port
                && port.port == key.port
                && protocol.is_none_or(|it| it == port.protocol)
        })
    };
    let endpoints = slices.filter(listens).flat_map(|slice| &slice.endpoints);
    let endpoints = endpoints.filter(|endpoint| endpoint.address == key.address);
    endpoints.max_by_key(|endpoint| {
        let serves = endpoint.is_serving && endpoint.is_terminating;
        (endpoint.is_ready, serves)
    })
}
