//! Selects and weighs the endpoints of a Service port.
//!
//! Mirrors kube-proxy's `CategorizeEndpoints` (Kubernetes 1.36, `pkg/proxy/topology.go`; KEP-1669
//! for terminating endpoints, KEP-2433 and KEP-3015 for hints) with one difference: if a node has no local
//! endpoint, kube-proxy's IPVS mode falls back to all endpoints, and this function to none, because the
//! Kubernetes documentation of policy Local promises local endpoints or none. The annotations
//! `topology-keys` and `weights` are this program's own.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::cluster::model::{
    Endpoint, EndpointSlice, Family, Protocol, Service, ServicePort, SlicePort, TopologyKey,
    TrafficPolicy,
};

mod hints;
mod survey;
mod topology;
mod weights;

use super::SelectedEndpoint;
use hints::Hinting;
pub(crate) use survey::{Surveyed, survey};
pub(super) use topology::Topology;
pub(super) use weights::Weighing;

/// The endpoints of one Service port and family, for each traffic policy.
///
/// Each list is ordered by address and contains each address once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointSets {
    /// The endpoints for policy Cluster.
    pub(super) cluster: Vec<SelectedEndpoint>,
    /// The endpoints for policy Local.
    pub(super) local: Vec<SelectedEndpoint>,
    /// Whether `local` has ready endpoints; if not, all of its endpoints are terminating.
    pub(super) is_local_ready: bool,
}

impl EndpointSets {
    /// Selects the endpoints of `port` of `service` from its slices.
    ///
    /// The annotation `topology-keys` restricts both sets. Weights restrict neither: an endpoint of
    /// weight 0 is selected, so that it keeps its connections.
    pub(super) fn of(
        slices: &[&EndpointSlice],
        service: &Service,
        port: &ServicePort,
        family: Family,
        (topology, weighing): (&Topology<'_>, Weighing<'_>),
        most_connections: u16,
    ) -> Self {
        let keys = topology_keys(service);
        let weigh = |selected: Vec<Candidate<'_>>| {
            let weighing = weighing.among(selected.iter().map(|it| it.1), topology);
            let weigh = |(address, endpoint): Candidate<'_>| SelectedEndpoint {
                address: address.ip(),
                port: address.port(),
                weight: weighing.weight(endpoint, topology),
                most_connections,
            };
            selected.into_iter().map(weigh).collect()
        };
        let all = candidates(slices, port, family);
        let selected = |policy| {
            let selection = Selection::of(&all, policy, keys, topology);
            select(&all, |endpoint| selection.check(endpoint, topology).is_ok())
        };
        let cluster = selected(TrafficPolicy::Cluster);
        let local = selected(TrafficPolicy::Local);
        Self {
            is_local_ready: local.iter().any(|(_, endpoint)| endpoint.is_ready),
            cluster: weigh(cluster),
            local: weigh(local),
        }
    }
}

fn topology_keys(service: &Service) -> Option<&[TopologyKey]> {
    service.annotations.as_deref()?.topology_keys.as_deref()
}

/// An endpoint, and the address on which it serves the port.
type Candidate<'a> = (SocketAddr, &'a Endpoint);

/// Returns all endpoints of `port` in any state, ordered by address.
///
/// While an endpoint moves between slices, both may contain it. The better state counts, so that
/// the result does not depend on the order of the slices.
fn candidates<'a>(
    slices: &[&'a EndpointSlice],
    port: &ServicePort,
    family: Family,
) -> Vec<Candidate<'a>> {
    // Nearly always all of them: a slice has endpoints of one family, and most Services have one port.
    let most = slices.iter().map(|slice| slice.endpoints.len()).sum();
    let mut endpoints: Vec<Candidate<'a>> = Vec::with_capacity(most);
    for slice in slices {
        // By name, because the slice has the endpoints' port number (`targetPort`), not the Service's.
        let wanted = (&port.name, port.protocol);
        // A slice may have 20,000 ports, and each port of its Service looks its own up.
        let first = (slice.ports).partition_point(|listed| key(listed) < wanted);
        let listening = slice.ports[first..].iter();
        for listed in listening.take_while(|listed| key(listed) == wanted) {
            let of_family = |endpoint: &&Endpoint| Family::from(endpoint.address) == family;
            let found = slice.endpoints.iter().filter(of_family);
            endpoints.extend(found.map(|it| (SocketAddr::new(it.address, listed.port), it)));
        }
    }
    endpoints.sort_by_key(|&(address, endpoint)| (address, Reverse(rank(endpoint))));
    endpoints.dedup_by_key(|&mut (address, _)| address);
    endpoints
}

fn key(port: &SlicePort) -> (&Arc<str>, Protocol) {
    (&port.name, port.protocol)
}

/// Returns the usefulness of an endpoint's state; ready is highest.
fn rank(endpoint: &Endpoint) -> (bool, bool) {
    (endpoint.is_ready, is_last_resort(endpoint))
}

/// Returns whether the endpoint is terminating and still serves (KEP-1669).
fn is_last_resort(endpoint: &Endpoint) -> bool {
    endpoint.is_serving && endpoint.is_terminating
}

/// The test that an endpoint of a Service port must pass to serve a traffic policy.
#[derive(Clone, Copy, Debug)]
struct Selection<'a> {
    /// Whether only endpoints of this node may serve (policy Local).
    is_local: bool,
    /// The state that serves; [`State::Ready`] if any endpoint is ready.
    state: State,
    place: Place<'a>,
}

/// The places whose endpoints serve.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    /// All that topology hints permit.
    Hinted(Hinting<'a>),
    /// Those that match a key of the annotation `topology-keys`.
    Matching(TopologyKey),
    /// None: no key of the annotation matches an endpoint.
    Nowhere,
}

/// A state of an endpoint in which it may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Terminating, and still serving (KEP-1669).
    LastResort,
}

impl State {
    fn is_of(self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Ready => endpoint.is_ready,
            Self::LastResort => is_last_resort(endpoint),
        }
    }
}

/// Why an endpoint does not serve a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LeftOut {
    /// The traffic policy is Local, and it runs on another node.
    OtherNode,
    /// Its condition `ready` is false.
    NotReady,
    /// It is terminating, and other endpoints are ready.
    Terminating,
    /// It is terminating and no longer serves.
    Gone,
    /// Its hint `forNodes` names other nodes.
    NodeHint,
    /// Its hint `forZones` names other zones.
    ZoneHint,
    /// It does not match this key of the annotation `topology-keys`, and others do.
    Key(TopologyKey),
    /// No key of the annotation `topology-keys` matches any endpoint.
    NoKey,
}

impl<'a> Selection<'a> {
    fn of(
        all: &[Candidate<'_>],
        policy: TrafficPolicy,
        keys: Option<&[TopologyKey]>,
        topology: &Topology<'a>,
    ) -> Self {
        let is_local = policy == TrafficPolicy::Local;
        let endpoints = || {
            let all = all.iter().map(|&(_, endpoint)| endpoint);
            all.filter(move |endpoint| !is_local || topology.is_local(endpoint))
        };
        if let Some(keys) = keys {
            return Self::nearest(is_local, endpoints, keys, topology);
        }
        let ready = || endpoints().filter(|endpoint| endpoint.is_ready);
        let (state, hinting) = if ready().next().is_none() {
            // Hints restrict ready endpoints only. Restricting the last ones could leave clients without any.
            (State::LastResort, Hinting::Unrestricted)
        } else if is_local {
            // As in kube-proxy, hints do not restrict policy Local: its endpoints are near anyway.
            (State::Ready, Hinting::Unrestricted)
        } else {
            (State::Ready, Hinting::of(&ready, topology))
        };
        Self {
            is_local,
            state,
            place: Place::Hinted(hinting),
        }
    }

    /// Returns the selection of the first of `keys` that matches any endpoint.
    ///
    /// Tries all keys with ready endpoints first, then all keys with terminating ones: a distant ready
    /// endpoint serves better than a near one that is about to exit.
    fn nearest<'e, E: Iterator<Item = &'e Endpoint>>(
        is_local: bool,
        endpoints: impl Fn() -> E,
        keys: &[TopologyKey],
        topology: &Topology<'a>,
    ) -> Self {
        for state in [State::Ready, State::LastResort] {
            for &key in keys {
                let is_near = |it: &Endpoint| state.is_of(it) && topology.matches(it, key);
                if endpoints().any(is_near) {
                    let place = Place::Matching(key);
                    return Self {
                        is_local,
                        state,
                        place,
                    };
                }
            }
        }
        Self {
            is_local,
            state: State::Ready,
            place: Place::Nowhere,
        }
    }

    /// Returns why `endpoint` does not serve, if it does not.
    fn check(&self, endpoint: &Endpoint, topology: &Topology<'_>) -> Result<(), LeftOut> {
        if self.is_local && !topology.is_local(endpoint) {
            return Err(LeftOut::OtherNode);
        }
        if !self.state.is_of(endpoint) {
            return Err(match endpoint {
                it if !it.is_terminating => LeftOut::NotReady,
                it if it.is_serving => LeftOut::Terminating,
                _ => LeftOut::Gone,
            });
        }
        match self.place {
            Place::Hinted(hinting) => hinting.check(endpoint),
            Place::Matching(key) if !topology.matches(endpoint, key) => Err(LeftOut::Key(key)),
            Place::Matching(_) => Ok(()),
            Place::Nowhere => Err(LeftOut::NoKey),
        }
    }
}

fn select<'a>(
    candidates: &[Candidate<'a>],
    test: impl Fn(&Endpoint) -> bool,
) -> Vec<Candidate<'a>> {
    let matching = candidates.iter().filter(|(_, endpoint)| test(endpoint));
    let mut selected = Vec::with_capacity(candidates.len());
    selected.extend(matching.copied());
    selected
}

#[cfg(test)]
mod tests;
