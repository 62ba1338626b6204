//! The elements and chains that admit clients to one frontend.

use super::Filter;
use super::config::NodeFacts;
use super::guards::Guard;
use super::inside::firewall_mark;
use super::names::{
    EXTERNAL, EXTERNAL_FRONTENDS, FRONTENDS, GUARDED, INSIDE, INSIDE_HERE, INSIDE_MARKS,
    NODE_PORTS, inside,
};
use super::view::{Admission, View};
use crate::cluster::model::TrafficPolicy;
use crate::dataplane::packet_rules::{
    Guarding, LOCAL_ONLY, Part, PerFamily, REFUSE, guarding, key_of, ranges,
};
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Scope, SelectedEndpoint};
use nftables::{Chain, Element, Rule, Value, Verdict};

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
            let key = key_of(frontend);
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
pub(super) fn guard(frontend: &Frontend, access: &Access, node: &NodeFacts) -> Option<Guard> {
    let Guarding { verdict, chain } = guarding(frontend, access, true, &node.addresses)?;
    let jump = Part::entry(GUARDED.of(frontend.family()), key_of(frontend), verdict);
    let parts = [jump].into_iter().chain(chain.map(Part::Chain)).collect();
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
    let jump = Part::entry(map, key_of(frontend), Verdict::Jump(name.clone()));
    let chain = Chain::new(name, [Rule::new([refuse.into()])]);
    Guard {
        parts: vec![jump, Part::Chain(chain)],
        // It is unknown whether the frontend was external.
        hides: true,
    }
}
