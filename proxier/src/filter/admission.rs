//! The elements and the chain that admit clients to one frontend.

use std::net::IpAddr;
use std::sync::Arc;

use super::names::{
    EXTERNAL, EXTERNAL_FRONTENDS, FRONTENDS, GUARDED, INSIDE, LOCAL_ONLY, NOT_HERE, PerFamily,
    REFUSE, inside, ranges,
};
use crate::dataplane::ipvs::{Admission, MarkedClients};
use crate::frontend::Frontend;
use crate::model::{Networks, TrafficPolicy};
use crate::plan::{Availability, Scope};
use nftables::{Chain, Element, Key, Match, Relation, Rule, Value, Verdict};

/// The parts of the table that only one frontend uses.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Elements, each with the name of its set.
    pub(super) elements: Vec<(&'static str, Element)>,
    /// The chain of its source ranges, if it has any.
    pub(super) chain: Option<Chain>,
}

impl Parts {
    /// Returns the parts of `frontend` on a node with these main addresses.
    pub(super) fn of(
        frontend: &Frontend,
        admission: &Admission,
        node_addresses: &[IpAddr],
    ) -> Self {
        let family = frontend.family();
        let mut parts = Self::default();
        let mut add = |set: PerFamily, verdict| {
            let element = Element {
                key: key(frontend),
                verdict,
            };
            parts.elements.push((set.of(family), element));
        };

        // Node ports have no shield: another program may use the port first.
        if admission.scope != Scope::NodePort {
            add(FRONTENDS, None);
        }
        let masquerading = match (admission.scope, admission.policy) {
            // All cluster IPs share one chain, to which the set of frontends leads.
            (Scope::Internal, _) => None,
            (_, TrafficPolicy::Cluster) => Some(EXTERNAL),
            (_, TrafficPolicy::Local) => Some(LOCAL_ONLY),
        };
        if let Some(chain) = masquerading {
            add(EXTERNAL_FRONTENDS, Some(Verdict::Goto(chain.into())));
        }
        let guard = guard(frontend, admission, node_addresses);
        if let Some((verdict, _)) = &guard {
            add(GUARDED, Some(verdict.clone()));
        }
        if let Some(MarkedClients { mark, .. }) = admission.inside {
            add(INSIDE, Some(Verdict::Goto(inside(mark))));
        }
        parts.chain = guard.and_then(|(_, chain)| chain);
        parts
    }
}

/// Returns the verdict that rejects clients, and the chain of source ranges to which it jumps, if any.
///
/// `None` if all clients may use the frontend. The verdict is a jump and not a goto, because the packets of
/// admitted clients return to the rules that decide about masquerading.
fn guard(
    frontend: &Frontend,
    admission: &Admission,
    node_addresses: &[IpAddr],
) -> Option<(Verdict, Option<Chain>)> {
    let rejecting = match (admission.scope, admission.endpoints) {
        (_, Availability::Usable) => None,
        // A client outside may reach another node by a load balancer, so its packets are dropped and not
        // refused. For a client inside, no other node serves the cluster IP.
        (Scope::Internal, Availability::RemoteOnly) | (_, Availability::None) => Some(REFUSE),
        (_, Availability::RemoteOnly) => Some(NOT_HERE),
    };
    let Some(allowed) = &admission.source_ranges else {
        return rejecting.map(|chain| (Verdict::Jump(chain.into()), None));
    };
    let pass = match rejecting {
        Some(chain) => Verdict::Goto(chain.into()),
        None => Verdict::Return,
    };
    let name = ranges(frontend);
    let sources = sources(frontend, allowed, node_addresses);
    let chain = ranges_chain(name.clone(), sources, &pass);
    Some((Verdict::Jump(name), Some(chain)))
}

/// Returns the networks of the clients that `allowed` admits to `frontend`.
fn sources(frontend: &Frontend, allowed: &Networks, node_addresses: &[IpAddr]) -> Vec<Networks> {
    let mut sources = vec![allowed.clone()];
    // If service addresses are on a device, the node's own connections to a frontend have the frontend's
    // address as their source. If the ranges admit the node's address, these connections are admitted too.
    if (node_addresses.iter()).any(|&address| allowed.contains(address)) {
        sources.push(Networks::new(frontend.family(), [frontend.address.into()]));
    }
    sources
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
/// Each frontend with source ranges has its own chain. So a change of its ranges replaces only rules, which
/// is atomic, and not the map element, which would be missing for microseconds.
fn ranges_chain(name: Arc<str>, sources: Vec<Networks>, pass: &Verdict) -> Chain {
    let sources = sources.into_iter().filter(|networks| !networks.is_empty());
    let admit = |networks| {
        let from = Match::Source(Relation::Is, networks);
        Rule::new([from.into(), pass.clone().into()])
    };
    let drop_others = Rule::new([Verdict::Drop.into()]);
    let rules: Vec<Rule> = sources.map(admit).chain([drop_others]).collect();
    Chain::new(name, rules)
}
