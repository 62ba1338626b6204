//! The weights of endpoints: those of the annotation `weights` of their Service or of the operator, less for endpoints
//! that just started.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::Topology;
use crate::cluster::model::{Endpoint, Service, TopologyKey, Weights};
use crate::plan::{PlanConfig, Standings, slow_start};

/// The weight of endpoints without entries. kube-proxy sets the same weight.
const DEFAULT: u16 = 1;

/// The part of its weight that a new endpoint has is 1 / `NEW`.
const NEW: u16 = 8;

/// How the endpoints of a Service are weighed.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct Weighing<'a> {
    weights: Option<&'a Weights>,
    new: Option<&'a BTreeSet<IpAddr>>,
    silent: Option<&'a BTreeSet<IpAddr>>,
    /// What weights are multiplied by, so that also a small one has a smaller part.
    ///
    /// Also while no endpoint is new, so that a new one changes no other endpoint.
    factor: u16,
}

impl<'a> Weighing<'a> {
    /// Returns how the endpoints of `service` are weighed: by its own weights, otherwise by the operator's.
    pub(in crate::plan) fn of(
        service: &'a Service,
        config: &'a PlanConfig,
        standings: &'a Standings,
    ) -> Self {
        let annotations = service.annotations.as_deref();
        let own = annotations.and_then(|annotations| annotations.weights.as_ref());
        let weights = own.or(config.weights.as_deref());
        let starts_slowly = slow_start(service, config).is_some();
        let has_room = weights.is_none_or(|it| it.largest() <= u16::MAX / NEW);
        Self {
            weights,
            new: standings.new_of(&service.name).filter(|_| starts_slowly),
            silent: standings.silent_of(&service.name),
            factor: if starts_slowly && has_room { NEW } else { 1 },
        }
    }

    /// Returns how these endpoints are weighed beside each other: if all others have weight 0, also silent ones get
    /// connections.
    pub(super) fn among<'e>(
        self,
        endpoints: impl IntoIterator<Item = &'e Endpoint>,
        topology: &Topology<'_>,
    ) -> Self {
        let accepts = |endpoint: &Endpoint| self.weight(endpoint, topology) > 0;
        let has_others = self.silent.is_some() && endpoints.into_iter().any(accepts);
        Self {
            silent: self.silent.filter(|_| has_others),
            ..self
        }
    }

    /// Returns whether `endpoint` has weight 0 because it does not answer.
    pub(super) fn is_silenced(&self, endpoint: &Endpoint) -> bool {
        self.silent
            .is_some_and(|silent| silent.contains(&endpoint.address))
    }

    /// Returns whether `endpoint` has a smaller weight because it is new.
    pub(super) fn is_reduced(&self, endpoint: &Endpoint) -> bool {
        self.new.is_some_and(|new| new.contains(&endpoint.address))
    }

    /// Returns the weight of `endpoint`.
    pub(super) fn weight(&self, endpoint: &Endpoint, topology: &Topology<'_>) -> u16 {
        if self.is_silenced(endpoint) {
            return 0;
        }
        let rule = |weights| rule(endpoint, weights, topology);
        let whole = self
            .weights
            .map_or(DEFAULT, rule)
            .saturating_mul(self.factor);
        match self.is_reduced(endpoint) {
            // Weight 0 would end the start.
            true if whole > 0 => (whole / NEW).max(1),
            _ => whole,
        }
    }
}

/// Returns the weight that the entries give `endpoint`.
///
/// If several match, the most specific one counts ([`Weights`]).
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
