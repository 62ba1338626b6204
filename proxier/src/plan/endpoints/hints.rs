//! Topology hints: the nodes and zones assigned to endpoints (KEP-2433, KEP-3015).

use std::sync::Arc;

use super::{LeftOut, Topology};
use crate::cluster::model::{Endpoint, Hints};

/// The restriction that topology hints put on the endpoints of a Service port.
///
/// Hints of a kind count only if every ready endpoint has one and at least one names this node or zone.
/// Otherwise clients of this node might have no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hinting<'a> {
    /// Only endpoints with a hint for this node.
    SameNode(&'a str),
    /// Only endpoints with a hint for this zone.
    SameZone(&'a str),
    /// No restriction.
    Unrestricted,
}

impl<'a> Hinting<'a> {
    /// Returns the restriction for clients on this node, from the hints of all `ready` endpoints.
    pub(super) fn of<'e, E: Iterator<Item = &'e Endpoint>>(
        ready: &impl Fn() -> E,
        topology: &Topology<'a>,
    ) -> Self {
        let usable = |names: fn(&Hints) -> &Vec<Arc<str>>, this: &str| {
            let mut names_this = false;
            for endpoint in ready() {
                let names = names(&endpoint.location.hints);
                if names.is_empty() {
                    return false;
                }
                names_this |= has(names, this);
            }
            names_this
        };
        // KEP-3015: a node hint is more exact than a zone hint, and wins.
        if usable(|hints| &hints.nodes, topology.node_name) {
            return Self::SameNode(topology.node_name);
        }
        match topology.zone {
            Some(zone) if usable(|hints| &hints.zones, zone) => Self::SameZone(zone),
            _ => Self::Unrestricted,
        }
    }

    /// Returns why clients on this node may not use `endpoint`, if they may not.
    pub(super) fn check(self, endpoint: &Endpoint) -> Result<(), LeftOut> {
        let hints = &endpoint.location.hints;
        match self {
            Self::SameNode(node) if !has(&hints.nodes, node) => Err(LeftOut::NodeHint),
            Self::SameZone(zone) if !has(&hints.zones, zone) => Err(LeftOut::ZoneHint),
            _ => Ok(()),
        }
    }
}

fn has(names: &[Arc<str>], wanted: &str) -> bool {
    names.iter().any(|name| **name == *wanted)
}
