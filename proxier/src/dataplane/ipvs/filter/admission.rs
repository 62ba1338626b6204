//! The elements and chains that admit clients to one frontend.

use std::net::IpAddr;
use std::sync::Arc;

use super::Filter;
use super::config::NodeFacts;
use super::guards::Guard;
use super::inside::firewall_mark;
use super::names::{
    EXTERNAL, EXTERNAL_FRONTENDS, FRONTENDS, GUARDED, INSIDE, INSIDE_HERE, INSIDE_MARKS,
    LOCAL_ONLY, NODE_PORTS, NOT_HERE, REFUSE, inside,
};
use super::view::{Admission, View};
use crate::cluster::model::{Networks, TrafficPolicy};
use crate::dataplane::packet_rules::{Part, PerFamily, ranges};
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Availability, Scope, SelectedEndpoint};
use nftables::{Chain, Element, Key, Match, Relation, Rule, Value, Verdict};

impl Filter {
    /// Adds the parts of `frontend`, and those of its mark.
    pub(super) fn add_frontend(
        &self,
        frontend: &Frontend,
        view: View<'_>,
        add: &mut dyn FnMut(Part),
    ) {
        let admission = view.admission(frontend);
        let own = admission.and_then(|it| guard(frontend, it.access, &self.node));
        if let Some(guard) = own.as_ref().or_else(|| self.guards.frontends.get(frontend)) {
            guard.parts.iter().for_each(|part| add(part.clone()));
        }
        let Some(Admission { access, mark, here }) = admission else {
            return;
        };
        let mut add_own = |set: PerFamily, verdict| {
            let key = key(frontend);
            let set = set.of(frontend.family());
            add(Part::Element(set, Element { key, verdict }));
        };
        // Node ports have no shield: another program may use the port first.
        match access.scope {
            Scope::Internal | Scope::External => add_own(FRONTENDS, None),
            Scope::NodePort if self.config.input_accept_bit.is_some() => add_own(NODE_PORTS, None),
            Scope::NodePort => {}
        }
        let goto = |chain: &str| Some(Verdict::Goto(chain.into()));
        match (access.scope, access.policy) {
            // All cluster IPs share one chain, to which the set of frontends leads.
            (Scope::Internal, _) => {}
            (_, TrafficPolicy::Cluster) => add_own(EXTERNAL_FRONTENDS, goto(EXTERNAL)),
            (_, TrafficPolicy::Local) => add_own(EXTERNAL_FRONTENDS, goto(LOCAL_ONLY)),
        }
        // Frontends with one mark share all of this except the way to it.
        if let Some(mark) = mark {
            add_own(INSIDE, goto(&inside(mark)));
            add(Part::Chain(firewall_mark(mark)));
            add(Part::member(INSIDE_MARKS, [Value::Mark(mark)]));
            for SelectedEndpoint { address, .. } in here {
                let set = INSIDE_HERE.of((*address).into());
                add(Part::member(set, [(*address).into(), Value::Mark(mark)]));
            }
        }
    }
}

/// Returns the guard that rejects clients; `None` if all clients may use the frontend.
///
/// Its verdict is a jump and not a goto, because the packets of admitted clients return to the rules that decide
/// about masquerading.
pub(super) fn guard(frontend: &Frontend, access: &Access, node: &NodeFacts) -> Option<Guard> {
    let rejecting = match (access.scope, access.endpoints) {
        (_, Availability::Usable) => None,
        // A client outside may reach another node by a load balancer, so its packets are dropped and not
        // refused. For a client inside, no other node serves the cluster IP.
        (Scope::Internal, Availability::RemoteOnly) | (_, Availability::None) => Some(REFUSE),
        (_, Availability::RemoteOnly) => Some(NOT_HERE),
    };
    let jump = |chain| {
        let map = GUARDED.of(frontend.family());
        Part::entry(map, key(frontend), Verdict::Jump(chain))
    };
    let parts = match &access.source_ranges {
        None => vec![jump(rejecting?.into())],
        Some(allowed) => {
            let pass = match rejecting {
                Some(chain) => Verdict::Goto(chain.into()),
                None => Verdict::Return,
            };
            let sources = sources(frontend, allowed, &node.addresses);
            let chain = ranges_chain(ranges(frontend), sources, &pass);
            vec![jump(chain.name.clone()), Part::Chain(chain)]
        }
    };
    let hides = access.scope == Scope::External;
    Some(Guard { parts, hides })
}

/// Returns a guard that rejects all new connections.
///
/// Its chain has the name of the frontend's source-range chain. If the kernel has that chain from an earlier
/// process, the write keeps its element and replaces only its rules, which is atomic.
pub(super) fn refusing(frontend: &Frontend) -> Guard {
    let name = ranges(frontend);
    let refuse = Verdict::Goto(REFUSE.into());
    let map = GUARDED.of(frontend.family());
    let jump = Part::entry(map, key(frontend), Verdict::Jump(name.clone()));
    let chain = Chain::new(name, [Rule::new([refuse.into()])]);
    Guard {
        parts: vec![jump, Part::Chain(chain)],
        // It is unknown whether the frontend was external.
        hides: true,
    }
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

/// Returns the key of `frontend` in sets and maps.
fn key(frontend: &Frontend) -> Key {
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
