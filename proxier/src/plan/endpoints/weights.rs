//! The weights of endpoints, from the annotation `weights` of their Service.

use std::sync::Arc;

use super::Topology;
use crate::cluster::model::{Endpoint, Weights};

/// The weight of endpoints of a Service without the annotation. kube-proxy sets the same weight.
const DEFAULT: u16 = 1;

/// Returns the weight of `endpoint`.
///
/// If several rules match, address wins over node, node over zone, and zone over the default.
pub(super) fn of(endpoint: &Endpoint, weights: Option<&Weights>, topology: &Topology<'_>) -> u16 {
    weights.map_or(DEFAULT, |weights| rule(endpoint, weights, topology))
}

fn rule(endpoint: &Endpoint, weights: &Weights, topology: &Topology<'_>) -> u16 {
    // The parser sorts the longest prefix first, so that the first match is the most exact.
    let mut addresses = weights.addresses.iter();
    let by_address = addresses.find(|(network, _)| network.contains(endpoint.address));
    by_address
        .map(|&(_, weight)| weight)
        .or_else(|| named(&weights.nodes, endpoint.location.node.as_deref()?))
        .or_else(|| named(&weights.zones, topology.zone_of(endpoint)?))
        .unwrap_or(weights.default)
}

fn named(rules: &[(Arc<str>, u16)], name: &str) -> Option<u16> {
    let index = rules
        .binary_search_by(|(rule, _)| (**rule).cmp(name))
        .ok()?;
    rules.get(index).map(|&(_, weight)| weight)
}
