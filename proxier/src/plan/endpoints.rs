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
    Weights,
};

mod hints;
mod topology;
mod weights;

use super::SelectedEndpoint;
use hints::Hinting;
pub(super) use topology::Topology;

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
        (topology, default_weights): (&Topology<'_>, Option<&Weights>),
    ) -> Self {
        let annotations = service.annotations.as_deref();
        let keys = annotations.and_then(|annotations| annotations.topology_keys.as_deref());
        let weights = annotations.and_then(|annotations| annotations.weights.as_ref());
        let weights = weights.or(default_weights);
        let weigh = |(address, endpoint): Candidate<'_>| SelectedEndpoint {
            address: address.ip(),
            port: address.port(),
            weight: weights::of(endpoint, weights, topology),
        };
        let all = candidates(slices, port, family);
        let is_local = |(_, endpoint): &Candidate<'_>| topology.is_local(endpoint);
        let local: Vec<_> = all.iter().copied().filter(is_local).collect();
        let (cluster, local) = match keys {
            Some(keys) => (
                nearest(&all, keys, topology),
                nearest(&local, keys, topology),
            ),
            // As in kube-proxy, hints do not restrict policy Local: its endpoints are near anyway.
            None => (hinted(&all, topology), usable(&local, |_| true)),
        };
        Self {
            is_local_ready: local.iter().any(|(_, endpoint)| endpoint.is_ready),
            cluster: cluster.into_iter().map(weigh).collect(),
            local: local.into_iter().map(weigh).collect(),
        }
    }
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

/// Returns the ready candidates that `admits` accepts.
///
/// If there is none, returns the accepted candidates that are terminating and still serve.
fn usable<'a>(
    candidates: &[Candidate<'a>],
    admits: impl Fn(&Endpoint) -> bool,
) -> Vec<Candidate<'a>> {
    let ready = select(candidates, |endpoint| endpoint.is_ready && admits(endpoint));
    if ready.is_empty() {
        return select(candidates, |endpoint| {
            is_last_resort(endpoint) && admits(endpoint)
        });
    }
    ready
}

/// Returns the candidates that topology hints assign to this node or zone.
///
/// Hints restrict ready endpoints only. Terminating endpoints serve only if no endpoint is ready;
/// restricting them, too, could leave clients without any.
fn hinted<'a>(candidates: &[Candidate<'a>], topology: &Topology<'_>) -> Vec<Candidate<'a>> {
    let endpoints = candidates.iter().map(|&(_, endpoint)| endpoint);
    let hinting = Hinting::of(endpoints.filter(|endpoint| endpoint.is_ready), topology);
    usable(candidates, |endpoint| {
        !endpoint.is_ready || hinting.admits(endpoint)
    })
}

/// Returns the matches of the first of `keys` that matches any candidate.
///
/// Tries all keys with ready endpoints first, then all keys with terminating ones: a distant ready
/// endpoint serves better than a near one that is about to exit.
fn nearest<'a>(
    candidates: &[Candidate<'a>],
    keys: &[TopologyKey],
    topology: &Topology<'_>,
) -> Vec<Candidate<'a>> {
    for is_eligible in [|endpoint: &Endpoint| endpoint.is_ready, is_last_resort] {
        for &key in keys {
            let near = select(candidates, |endpoint| {
                is_eligible(endpoint) && topology.matches(endpoint, key)
            });
            if !near.is_empty() {
                return near;
            }
        }
    }
    Vec::new()
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
