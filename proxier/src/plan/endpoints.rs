//! Which endpoints serve a Service port, and with what share of its connections.
//!
//! Mirrors kube-proxy's `CategorizeEndpoints` (Kubernetes 1.36, `pkg/proxy/topology.go`; KEP-1669
//! for terminating endpoints, KEP-2433 and KEP-3015 for hints), without the fall-back of its IPVS
//! mode from local to all endpoints: under policy Local the documentation promises local endpoints
//! or none. The annotations `topology-keys` and `weights` are ours.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::model::{Endpoint, Family, Service, ServicePort, TopologyKey};
use crate::store::Snapshot;

mod hints;
mod place;
mod weights;

use hints::Hinting;
pub(super) use place::Place;

/// The endpoints of one Service port and family, by the traffic they serve; each list is ordered by
/// address and names each address once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointSets {
    /// For policy Cluster.
    pub(super) cluster: Vec<Chosen>,
    /// For policy Local.
    pub(super) local: Vec<Chosen>,
    /// Whether those in `local` are ready, not only the last resort.
    pub(super) is_local_ready: bool,
}

/// An endpoint that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Its share of new connections; 0 = none.
    pub(super) weight: u16,
}

impl EndpointSets {
    /// Collects and chooses the endpoints of `port`.
    ///
    /// What `service` asks of its endpoints' places restricts both sets. Weights do not: an
    /// endpoint of weight 0 is chosen, and keeps the connections it has.
    pub(super) fn of(
        snapshot: &Snapshot,
        service: &Service,
        port: &ServicePort,
        family: Family,
        place: &Place<'_>,
    ) -> Self {
        let annotations = service.annotations.as_deref();
        let keys = annotations.and_then(|annotations| annotations.topology_keys.as_deref());
        let weights = annotations.and_then(|annotations| annotations.weights.as_ref());
        let weigh = |(address, endpoint): Candidate<'_>| Chosen {
            address,
            weight: weights::of(endpoint, weights, place),
        };
        let all = candidates(snapshot, service, port, family);
        let is_local = |(_, endpoint): &Candidate<'_>| place.is_local(endpoint);
        let local: Vec<_> = all.iter().copied().filter(is_local).collect();
        let (cluster, local) = match keys {
            Some(keys) => (nearest(&all, keys, place), nearest(&local, keys, place)),
            None => (hinted(&all, place), usable(&local, |_| true)),
        };
        Self {
            is_local_ready: local.iter().any(|(_, endpoint)| endpoint.is_ready),
            cluster: cluster.into_iter().map(weigh).collect(),
            local: local.into_iter().map(weigh).collect(),
        }
    }
}

/// An endpoint and where it listens for the port in question.
type Candidate<'a> = (SocketAddr, &'a Endpoint);

/// All endpoints that listen for `port`, whatever their state, in order of their addresses.
///
/// Slices may name the same endpoint twice while it moves between them; its best state counts.
fn candidates<'a>(
    snapshot: &'a Snapshot,
    service: &Service,
    port: &ServicePort,
    family: Family,
) -> Vec<Candidate<'a>> {
    let mut found: BTreeMap<SocketAddr, &Endpoint> = BTreeMap::new();
    for slice in snapshot.slices(&service.name) {
        let listens = |listed: &&crate::model::SlicePort| {
            listed.name == port.name && listed.protocol == port.protocol
        };
        for listed in slice.ports.iter().filter(listens) {
            let of_family = |endpoint: &&Endpoint| Family::from(endpoint.address) == family;
            for endpoint in slice.endpoints.iter().filter(of_family) {
                let address = SocketAddr::new(endpoint.address, listed.port);
                let known = found.entry(address).or_insert(endpoint);
                if rank(endpoint) > rank(known) {
                    *known = endpoint;
                }
            }
        }
    }
    found.into_iter().collect()
}

/// Of two states of one endpoint the higher, the more useful one, is believed.
fn rank(endpoint: &Endpoint) -> (bool, bool) {
    (endpoint.is_ready, is_last_resort(endpoint))
}

/// An endpoint on its way out that still answers is better than none (KEP-1669).
fn is_last_resort(endpoint: &Endpoint) -> bool {
    endpoint.is_serving && endpoint.is_terminating
}

/// Those of `candidates` that `admits` lets through and that are ready; when there are none, those
/// that are the last resort.
fn usable<'a>(
    candidates: &[Candidate<'a>],
    admits: impl Fn(&Endpoint) -> bool,
) -> Vec<Candidate<'a>> {
    let ready = among(candidates, |endpoint| endpoint.is_ready && admits(endpoint));
    if ready.is_empty() {
        return among(candidates, |endpoint| {
            is_last_resort(endpoint) && admits(endpoint)
        });
    }
    ready
}

/// Those that topology hints want used here. Hints are about ready endpoints only.
fn hinted<'a>(candidates: &[Candidate<'a>], place: &Place<'_>) -> Vec<Candidate<'a>> {
    let endpoints = candidates.iter().map(|&(_, endpoint)| endpoint);
    let hinting = Hinting::of(endpoints.filter(|endpoint| endpoint.is_ready), place);
    usable(candidates, |endpoint| {
        !endpoint.is_ready || hinting.admits(endpoint)
    })
}

/// Those that are as near as the first of `keys` that leaves any; being ready counts more than
/// being near.
fn nearest<'a>(
    candidates: &[Candidate<'a>],
    keys: &[TopologyKey],
    place: &Place<'_>,
) -> Vec<Candidate<'a>> {
    for is_fit in [|endpoint: &Endpoint| endpoint.is_ready, is_last_resort] {
        for &key in keys {
            let near = among(candidates, |endpoint| {
                is_fit(endpoint) && place.is_near(endpoint, key)
            });
            if !near.is_empty() {
                return near;
            }
        }
    }
    Vec::new()
}

fn among<'a>(candidates: &[Candidate<'a>], test: impl Fn(&Endpoint) -> bool) -> Vec<Candidate<'a>> {
    let matching = candidates.iter().filter(|(_, endpoint)| test(endpoint));
    matching.copied().collect()
}

#[cfg(test)]
mod tests;
