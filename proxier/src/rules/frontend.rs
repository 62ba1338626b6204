//! What one frontend puts into the table.

use std::sync::Arc;

use super::names::{
    CLUSTER_IP, EXTERNAL, FRONTENDS, GUARDED, INSIDE, LOCAL_ONLY, NOT_HERE, REFUSE, inside, ranges,
};
use super::{Config, Endpoints, Frontend, Kind, Place};
use crate::model::{Networks, TrafficPolicy};
use crate::nftables::{Chain, Element, Key, Match, Relation, Rule, Value, Verdict};

/// What belongs to one frontend alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Elements, with the names of their sets.
    pub(super) elements: Vec<(&'static str, Element)>,
    /// A chain.
    pub(super) chain: Option<Chain>,
}

/// The parts of `frontend` at `place`.
pub(super) fn parts(place: &Place, frontend: &Frontend, config: &Config) -> Parts {
    let family = place.family();
    let mut parts = Parts::default();
    let mut add = |set, verdict| {
        let element = Element {
            key: key(place),
            verdict: Some(verdict),
        };
        parts.elements.push((set, element));
    };

    let masqueraded = match (frontend.kind, frontend.policy) {
        (Kind::ClusterIp, _) => CLUSTER_IP,
        (Kind::External, TrafficPolicy::Cluster) => EXTERNAL,
        (Kind::External, TrafficPolicy::Local) => LOCAL_ONLY,
    };
    add(FRONTENDS.of(family), Verdict::Goto(masqueraded.into()));

    let unserved = match (frontend.kind, frontend.endpoints) {
        (_, Endpoints::Some) => None,
        (Kind::External, Endpoints::Elsewhere) => Some(NOT_HERE),
        (Kind::ClusterIp, Endpoints::Elsewhere) | (_, Endpoints::None) => Some(REFUSE),
    };
    let mut chain = None;
    if let Some(allowed) = &frontend.source_ranges {
        let name = ranges(place);
        add(GUARDED.of(family), Verdict::Jump(name.clone()));
        chain = Some(ranges_chain(name, place, allowed, unserved, config));
    } else if let Some(unserved) = unserved {
        add(GUARDED.of(family), Verdict::Jump(unserved.into()));
    }
    if let Some(mark) = frontend.inside {
        add(INSIDE.of(family), Verdict::Goto(inside(mark)));
    }
    parts.chain = chain;
    parts
}

/// The frontend at `place` in maps.
pub(super) fn key(place: &Place) -> Key {
    Key::new([
        place.address.into(),
        Value::Protocol(place.protocol),
        Value::Port(place.port),
    ])
}

/// Lets sources in `allowed` on, to `next` if there is more to say; drops all others.
///
/// The chain is the frontend's own, so that new ranges are new rules of it: rules change in one
/// moment, while an element of a map that changes is missing for the shortest of times.
fn ranges_chain(
    name: Arc<str>,
    place: &Place,
    allowed: &Networks,
    next: Option<&str>,
    config: &Config,
) -> Chain {
    let pass = match next {
        Some(chain) => Verdict::Goto(chain.into()),
        None => Verdict::Return,
    };
    let mut rules = Vec::with_capacity(3);
    if !allowed.is_empty() {
        let from = Match::Source(Relation::Is, allowed.clone());
        rules.push(Rule::new([from.into(), pass.clone().into()]));
    }
    // A process of the node whose source is the address itself, as it is with addresses on a
    // device, counts by the node's address.
    let is_node_allowed = config.node_addresses.iter().any(|&it| allowed.contains(it));
    if is_node_allowed {
        let itself = Networks::new(place.family(), [place.address.into()]);
        let from = Match::Source(Relation::Is, itself);
        rules.push(Rule::new([from.into(), pass.into()]));
    }
    rules.push(Rule::new([Verdict::Drop.into()]));
    Chain::new(name, rules)
}
