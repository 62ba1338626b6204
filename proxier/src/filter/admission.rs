//! The elements and the chain of one frontend.

use std::net::IpAddr;
use std::sync::Arc;

use super::names::{
    CLUSTER_IP, EXTERNAL, FRONTENDS, GUARDED, INSIDE, LOCAL_ONLY, NOT_HERE, REFUSE, inside, ranges,
};
use crate::frontend::Frontend;
use crate::model::{Networks, TrafficPolicy};
use crate::nftables::{Chain, Element, Key, Match, Relation, Rule, Value, Verdict};
use crate::plan::{Admission, Availability, Scope};

/// The parts of the table that belong to one frontend alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Elements, each with the name of its set.
    pub(super) elements: Vec<(&'static str, Element)>,
    /// The chain of its source ranges.
    pub(super) chain: Option<Chain>,
}

/// Returns the parts of `frontend`, on a node with these main addresses.
pub(super) fn parts(
    frontend: &Frontend,
    admission: &Admission,
    node_addresses: &[IpAddr],
) -> Parts {
    let family = frontend.family();
    let mut parts = Parts::default();
    let mut add = |set, verdict| {
        let element = Element {
            key: key(frontend),
            verdict: Some(verdict),
        };
        parts.elements.push((set, element));
    };

    let masquerading = match (admission.scope, admission.policy) {
        (Scope::Internal, _) => CLUSTER_IP,
        (Scope::External, TrafficPolicy::Cluster) => EXTERNAL,
        (Scope::External, TrafficPolicy::Local) => LOCAL_ONLY,
    };
    add(FRONTENDS.of(family), Verdict::Goto(masquerading.into()));

    let rejecting = match (admission.scope, admission.endpoints) {
        (_, Availability::Usable) => None,
        (Scope::External, Availability::RemoteOnly) => Some(NOT_HERE),
        (Scope::Internal, Availability::RemoteOnly) | (_, Availability::None) => Some(REFUSE),
    };
    let mut chain = None;
    if let Some(allowed) = &admission.source_ranges {
        let pass = match rejecting {
            Some(chain) => Verdict::Goto(chain.into()),
            None => Verdict::Return,
        };
        let name = ranges(frontend);
        add(GUARDED.of(family), Verdict::Jump(name.clone()));
        let itself = Networks::new(family, [frontend.address.into()]);
        // With addresses on a device, a process of the node has the frontend's address as its
        // source. It is admitted if the node's address is.
        let is_node_allowed = node_addresses.iter().any(|&it| allowed.contains(it));
        let sources = [Some(allowed.clone()), is_node_allowed.then_some(itself)];
        chain = Some(ranges_chain(name, sources.into_iter().flatten(), &pass));
    } else if let Some(rejecting) = rejecting {
        add(GUARDED.of(family), Verdict::Jump(rejecting.into()));
    }
    if let Some(mark) = admission.inside_mark {
        add(INSIDE.of(family), Verdict::Goto(inside(mark)));
    }
    parts.chain = chain;
    parts
}

/// Returns the key of `frontend` in maps.
pub(super) fn key(frontend: &Frontend) -> Key {
    Key::new([
        frontend.address.into(),
        Value::Protocol(frontend.protocol),
        Value::Port(frontend.port),
    ])
}

/// Returns a chain that applies `pass` to packets from `sources` and drops all others.
///
/// Each frontend with source ranges has a chain of its own, so that other ranges are other rules of
/// that chain. Rules change atomically; a map element that changes is missing for microseconds.
fn ranges_chain(name: Arc<str>, sources: impl Iterator<Item = Networks>, pass: &Verdict) -> Chain {
    let sources = sources.filter(|networks| !networks.is_empty());
    let admit = |networks| {
        let from = Match::Source(Relation::Is, networks);
        Rule::new([from.into(), pass.clone().into()])
    };
    let drop_others = Rule::new([Verdict::Drop.into()]);
    let rules: Vec<Rule> = sources.map(admit).chain([drop_others]).collect();
    Chain::new(name, rules)
}
