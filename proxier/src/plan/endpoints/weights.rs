//! The weights that a Service's annotation gives its endpoints.

use std::sync::Arc;

use super::Place;
use crate::model::{Endpoint, Weights};

/// The weight of endpoints that nothing is said about.
const DEFAULT: u16 = 1;

/// The weight of `endpoint`: of several rules the most exact one's.
pub(super) fn of(endpoint: &Endpoint, weights: Option<&Weights>, place: &Place<'_>) -> u16 {
    weights.map_or(DEFAULT, |weights| rule(endpoint, weights, place))
}

fn rule(endpoint: &Endpoint, weights: &Weights, place: &Place<'_>) -> u16 {
    // Longest prefixes come first.
    let mut addresses = weights.addresses.iter();
    let by_address = addresses.find(|(network, _)| network.contains(endpoint.address));
    by_address
        .map(|&(_, weight)| weight)
        .or_else(|| named(&weights.nodes, endpoint.location.node.as_deref()?))
        .or_else(|| named(&weights.zones, place.zone_of(endpoint)?))
        .unwrap_or(weights.default)
}

fn named(rules: &[(Arc<str>, u16)], name: &str) -> Option<u16> {
    let at = rules
        .binary_search_by(|(rule, _)| (**rule).cmp(name))
        .ok()?;
    rules.get(at).map(|&(_, weight)| weight)
}
