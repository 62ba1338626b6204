//! The weights of endpoints, from the annotation `weights` of their Service or the operator's default.

use std::sync::Arc;

use super::Topology;
use crate::cluster::model::{Endpoint, TopologyKey, Weights};

/// The weight of endpoints without entries. kube-proxy sets the same weight.
const DEFAULT: u16 = 1;

/// Returns the weight of `endpoint`.
///
/// If several entries match, the most specific one counts ([`Weights`]).
pub(super) fn of(endpoint: &Endpoint, weights: Option<&Weights>, topology: &Topology<'_>) -> u16 {
    weights.map_or(DEFAULT, |weights| rule(endpoint, weights, topology))
}

fn rule(endpoint: &Endpoint, weights: &Weights, topology: &Topology<'_>) -> u16 {
    // The parser sorts the longest prefix first, so that the first match is the most exact.
    let mut addresses = weights.addresses.iter();
    let by_address = addresses.find(|(network, _)| network.contains(endpoint.address));
    let near = |wanted| {
        let mut entries = weights.near.iter();
        let entry = entries.find(|(key, _)| *key == wanted && topology.is_near(endpoint, *key));
        entry.map(|&(_, weight)| weight)
    };
    by_address
        .map(|&(_, weight)| weight)
        .or_else(|| named(&weights.nodes, endpoint.location.node.as_deref()?))
        .or_else(|| near(TopologyKey::Hostname))
        .or_else(|| named(&weights.zones, topology.zone_of(endpoint)?))
        .or_else(|| near(TopologyKey::Zone))
        .or_else(|| near(TopologyKey::Region))
        .unwrap_or(weights.default)
}

fn named(rules: &[(Arc<str>, u16)], name: &str) -> Option<u16> {
    let index = rules
        .binary_search_by(|(rule, _)| (**rule).cmp(name))
        .ok()?;
    rules.get(index).map(|&(_, weight)| weight)
}
