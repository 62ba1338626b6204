//! Which endpoints serve a Service port.
//!
//! Mirrors kube-proxy's `CategorizeEndpoints` (Kubernetes 1.36, `pkg/proxy/topology.go`; KEP-1669
//! for terminating endpoints, KEP-2433 and KEP-3015 for hints), without the fall-back of its IPVS
//! mode from local to all endpoints: under policy Local the documentation promises local endpoints
//! or none.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::model::{Endpoint, Family, Hints, Service, ServicePort};
use crate::store::Snapshot;

/// Where this node is.
pub(super) struct Place<'a> {
    /// The node's name.
    pub(super) node_name: &'a str,
    /// The node's zone, if labelled.
    pub(super) zone: Option<&'a str>,
}

/// The endpoints of one Service port and family, by the traffic they serve; ordered by address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointSets {
    /// For policy Cluster.
    pub(super) cluster: Vec<SocketAddr>,
    /// For policy Local.
    pub(super) local: Vec<SocketAddr>,
}

impl EndpointSets {
    /// Collects and chooses the endpoints of `port`.
    pub(super) fn of(
        snapshot: &Snapshot,
        service: &Service,
        port: &ServicePort,
        family: Family,
        place: &Place<'_>,
    ) -> Self {
        choose(&candidates(snapshot, service, port, family), place)
    }
}

/// All endpoints that listen for `port`, whatever their state.
///
/// Slices may name the same endpoint twice while it moves between them; its best state counts.
fn candidates<'a>(
    snapshot: &'a Snapshot,
    service: &Service,
    port: &ServicePort,
    family: Family,
) -> BTreeMap<SocketAddr, &'a Endpoint> {
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
    found
}

/// Of two states of one endpoint the higher is believed.
fn rank(endpoint: &Endpoint) -> (bool, bool, bool) {
    (
        !endpoint.is_terminating,
        endpoint.is_ready,
        endpoint.is_serving,
    )
}

fn choose(candidates: &BTreeMap<SocketAddr, &Endpoint>, place: &Place<'_>) -> EndpointSets {
    let hinted = Hinting::of(
        candidates.values().filter(|endpoint| endpoint.is_ready),
        place,
    );
    let ready = |endpoint: &Endpoint| endpoint.is_ready;
    // An endpoint on its way out that still answers is better than none (KEP-1669).
    let last_resort = |endpoint: &Endpoint| endpoint.is_serving && endpoint.is_terminating;
    let is_local = |endpoint: &Endpoint| {
        !place.node_name.is_empty() && endpoint.node.as_deref() == Some(place.node_name)
    };
    EndpointSets {
        cluster: first_non_empty(
            candidates,
            |endpoint| ready(endpoint) && hinted.admits(endpoint),
            last_resort,
        ),
        local: first_non_empty(
            candidates,
            |endpoint| ready(endpoint) && is_local(endpoint),
            |endpoint| last_resort(endpoint) && is_local(endpoint),
        ),
    }
}

fn first_non_empty(
    candidates: &BTreeMap<SocketAddr, &Endpoint>,
    preferred: impl Fn(&Endpoint) -> bool,
    otherwise: impl Fn(&Endpoint) -> bool,
) -> Vec<SocketAddr> {
    let matching = |test: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        let matches = candidates.iter().filter(|(_, endpoint)| test(endpoint));
        matches.map(|(&address, _)| address).collect()
    };
    let chosen = matching(&preferred);
    if chosen.is_empty() {
        matching(&otherwise)
    } else {
        chosen
    }
}

/// Whether topology hints restrict the choice, and to what.
///
/// Hints of a kind count only if every ready endpoint has some and at least one points here;
/// otherwise clients of this place could be left without endpoints.
#[derive(Debug, PartialEq, Eq)]
enum Hinting<'a> {
    /// Only endpoints hinted for this node.
    SameNode(&'a str),
    /// Only endpoints hinted for this zone.
    SameZone(&'a str),
    /// All of them.
    Anywhere,
}

impl<'a> Hinting<'a> {
    fn of<'e>(ready: impl Iterator<Item = &'e &'e Endpoint> + Clone, place: &Place<'a>) -> Self {
        let usable = |names: fn(&Hints) -> &Vec<std::sync::Arc<str>>, here: &str| {
            let mut points_here = false;
            for endpoint in ready.clone() {
                let names = endpoint
                    .hints
                    .as_deref()
                    .map(names)
                    .filter(|names| !names.is_empty());
                let Some(names) = names else { return false };
                points_here |= names.iter().any(|name| **name == *here);
            }
            points_here
        };
        if usable(|hints| &hints.nodes, place.node_name) {
            return Self::SameNode(place.node_name);
        }
        match place.zone {
            Some(zone) if usable(|hints| &hints.zones, zone) => Self::SameZone(zone),
            _ => Self::Anywhere,
        }
    }

    fn admits(&self, endpoint: &Endpoint) -> bool {
        let Some(hints) = endpoint.hints.as_deref() else {
            return *self == Self::Anywhere;
        };
        match *self {
            Self::SameNode(node) => hints.nodes.iter().any(|name| **name == *node),
            Self::SameZone(zone) => hints.zones.iter().any(|name| **name == *zone),
            Self::Anywhere => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint from words: its last address byte, then any of `unready`, `serving`,
    /// `terminating`, `@node`, `zone=..`, `node=..`.
    fn endpoint(words: &str) -> Endpoint {
        let mut words = words.split_whitespace();
        let last: u8 = words.next().unwrap().parse().unwrap();
        let mut endpoint = Endpoint {
            address: [10, 0, 0, last].into(),
            is_ready: true,
            is_serving: true,
            is_terminating: false,
            node: None,
            zone: None,
            hints: None,
        };
        for word in words {
            if let Some(node) = word.strip_prefix('@') {
                endpoint.node = Some(node.into());
            } else if let Some(zone) = word.strip_prefix("zone=") {
                endpoint
                    .hints
                    .get_or_insert_default()
                    .zones
                    .push(zone.into());
            } else if let Some(node) = word.strip_prefix("node=") {
                endpoint
                    .hints
                    .get_or_insert_default()
                    .nodes
                    .push(node.into());
            } else {
                match word {
                    "unready" => (endpoint.is_ready, endpoint.is_serving) = (false, false),
                    "terminating" => (endpoint.is_ready, endpoint.is_terminating) = (false, true),
                    other => panic!("{other}"),
                }
            }
        }
        endpoint
    }

    /// Chooses for node `here` in zone `a`; answers the last address bytes.
    fn check(endpoints: &[&str], cluster: &[u8], local: &[u8]) {
        let endpoints: Vec<Endpoint> = endpoints.iter().map(|words| endpoint(words)).collect();
        let candidates = endpoints
            .iter()
            .map(|e| (SocketAddr::new(e.address, 80), e))
            .collect();
        let sets = choose(
            &candidates,
            &Place {
                node_name: "here",
                zone: Some("a"),
            },
        );
        let last = |addresses: &[SocketAddr]| -> Vec<u8> {
            let octet = |a: &SocketAddr| match a {
                SocketAddr::V4(v4) => v4.ip().octets()[3],
                SocketAddr::V6(_) => 0,
            };
            addresses.iter().map(octet).collect()
        };
        assert_eq!(
            (last(&sets.cluster), last(&sets.local)),
            (cluster.to_vec(), local.to_vec())
        );
    }

    #[test]
    fn ready_endpoints_serve_and_local_ones_serve_local_traffic() {
        check(&[], &[], &[]);
        check(&["1 @here", "2 @there", "3 unready"], &[1, 2], &[1]);
        check(&["1", "2 @there"], &[1, 2], &[]);
    }

    #[test]
    fn terminating_endpoints_serve_only_when_nothing_is_ready() {
        check(&["1 @here terminating", "2 @there"], &[2], &[1]);
        check(
            &["1 @here terminating", "2 @there terminating"],
            &[1, 2],
            &[1],
        );
        check(&["1 @here terminating unready"], &[], &[]);
    }

    #[test]
    fn zone_hints_count_only_when_complete_and_pointing_here() {
        check(&["1 zone=a", "2 zone=b"], &[1], &[]);
        check(&["1 zone=a", "2"], &[1, 2], &[]);
        check(&["1 zone=b", "2 zone=b"], &[1, 2], &[]);
        check(&["1 zone=a", "2 zone=b", "3 unready"], &[1], &[]);
        check(
            &["1 zone=a terminating", "2 zone=b terminating"],
            &[1, 2],
            &[],
        );
    }

    #[test]
    fn node_hints_win_over_zone_hints() {
        check(&["1 node=here zone=a", "2 node=there zone=a"], &[1], &[]);
        check(&["1 node=there zone=a", "2 node=there zone=b"], &[1], &[]);
        check(&["1 node=here zone=a", "2 zone=a"], &[1, 2], &[]);
    }
}
