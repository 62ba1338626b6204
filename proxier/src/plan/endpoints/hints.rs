//! Topology hints: where the control plane wants endpoints used (KEP-2433, KEP-3015).

use std::sync::Arc;

use super::Place;
use crate::model::{Endpoint, Hints};

/// Whether topology hints restrict the choice, and to what.
///
/// Hints of a kind count only if every ready endpoint has some and at least one points here;
/// otherwise clients of this place could be left without endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hinting<'a> {
    /// Only endpoints hinted for this node.
    SameNode(&'a str),
    /// Only endpoints hinted for this zone.
    SameZone(&'a str),
    /// All of them.
    Anywhere,
}

impl<'a> Hinting<'a> {
    /// What the hints of the endpoints in `ready` amount to for clients at `place`.
    pub(super) fn of<'e>(
        ready: impl Iterator<Item = &'e Endpoint> + Clone,
        place: &Place<'a>,
    ) -> Self {
        let usable = |names: fn(&Hints) -> &Vec<Arc<str>>, here: &str| {
            let mut points_here = false;
            for endpoint in ready.clone() {
                let hints = endpoint.hints.as_deref().map(names);
                let Some(names) = hints.filter(|names| !names.is_empty()) else {
                    return false;
                };
                points_here |= has(names, here);
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

    /// Whether clients here should use `endpoint`.
    pub(super) fn admits(self, endpoint: &Endpoint) -> bool {
        let hints = endpoint.hints.as_deref();
        match self {
            Self::SameNode(node) => hints.is_some_and(|hints| has(&hints.nodes, node)),
            Self::SameZone(zone) => hints.is_some_and(|hints| has(&hints.zones, zone)),
            Self::Anywhere => true,
        }
    }
}

fn has(names: &[Arc<str>], wanted: &str) -> bool {
    names.iter().any(|name| **name == *wanted)
}
