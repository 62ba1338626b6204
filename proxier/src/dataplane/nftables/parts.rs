//! The parts of the table that belong to one frontend.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nftables::{
    Chain, Element, Key, KeyType, Match, Relation, Rule, Selector, Set, SetKind, Statement, Table,
    Value, Verdict,
};

use super::chains::original_key;
use super::names::{
    AFFINITY, ENDPOINTS, EXTERNAL_FRONTENDS, FRONTENDS, GUARDED, LOCAL_ONLY, MASQUERADE, NOT_HERE,
    REFUSE, STICKY, learn,
};
use super::pick::{Pick, Way};
use super::slots::{self, OUTSIDE, Present, Slots};
use crate::cluster::model::{Family, Networks, TrafficPolicy};
use crate::dataplane::packet_rules::{FAMILIES, PerFamily, ranges, rule};
use crate::plan::frontend::Frontend;
use crate::plan::{Availability, FrontendPlan, Scope};

/// The verdict maps whose keys are frontends.
const MAPS: [PerFamily; 4] = [FRONTENDS, GUARDED, EXTERNAL_FRONTENDS, STICKY];

/// The parts of the table for one frontend.
pub(super) struct Parts {
    /// Its elements and the chain of its source ranges.
    pub(super) own: Table,
    /// The chains to which its elements lead.
    pub(super) shared: Vec<Chain>,
}

/// Returns the sets that have elements of frontends, without elements.
pub(super) fn sets(family: Family) -> impl Iterator<Item = Set> {
    let frontend = [KeyType::Address(family), KeyType::Protocol, KeyType::Port];
    let slot: Vec<KeyType> = frontend.into_iter().chain([KeyType::Mark]).collect();
    let maps = MAPS.map(|name| Set::new(name.of(family), frontend, SetKind::Verdicts));
    let endpoints = Set::new(ENDPOINTS.of(family), slot, SetKind::Targets(family));
    maps.into_iter().chain([endpoints])
}

/// Returns whether `frontend` has session affinity in `table`.
pub(super) fn is_sticky(table: &Table, frontend: &Frontend) -> bool {
    table.has_element(STICKY.of(frontend.family()), &key(frontend))
}

/// Returns the parts that only `frontend` has in `table`.
pub(super) fn present(table: &Table, frontend: &Frontend, slots: &Present) -> Table {
    let family = frontend.family();
    let mut parts = Parts::none(family).own;
    for name in MAPS {
        let name = name.of(family);
        let verdict = table
            .sets
            .get(name)
            .and_then(|map| map.verdict(&key(frontend)));
        let element = verdict.map(|verdict| Element {
            key: key(frontend),
            verdict: Some(verdict.clone()),
        });
        insert(&mut parts, name, element);
    }
    parts.insert_slots(frontend, slots);
    let ranges = table.chains.get(&ranges(frontend));
    ranges
        .into_iter()
        .for_each(|chain| parts.add_chain(chain.clone()));
    parts
}

impl Parts {
    /// Returns no parts.
    pub(super) fn none(family: Family) -> Self {
        let mut own = Table::default();
        sets(family).for_each(|set| own.add_set(set));
        Self {
            own,
            shared: Vec::new(),
        }
    }

    /// Returns the parts of `frontend` in the order of slots that is nearest to the `present` one.
    pub(super) fn of(
        frontend: &Frontend,
        plan: &FrontendPlan,
        node: Node<'_>,
        present: &Present,
    ) -> Self {
        let family = frontend.family();
        let mut parts = Self::none(family);
        let profile = &*plan.profile;
        let budget = slots::budget(plan);
        let slots = Slots::of(frontend, &plan.endpoints, &profile.balancing, budget);
        let (way, slots) = match &plan.inside {
            None => {
                let slots = slots.like(&present.first);
                let way = slots.pick(0).map(Way::One);
                let first = slots.endpoints;
                let outside = Vec::new();
                (way, Present { first, outside })
            }
            Some(plan) => {
                let inside = Slots::of(frontend, &plan.endpoints, &plan.balancing, budget);
                let inside = inside.like(&present.first);
                let outside = slots.like(&present.outside);
                let picks = (inside.pick(0), outside.pick(OUTSIDE));
                let way = match picks {
                    (None, None) => None,
                    (inside, outside) => Some(Way::Split { inside, outside }),
                };
                let (first, outside) = (inside.endpoints, outside.endpoints);
                (way, Present { first, outside })
            }
        };
        parts.own.insert_slots(frontend, &slots);
        let goto = |chain: Arc<str>| Some(Verdict::Goto(chain));
        if let Some(way) = way {
            let affinity = profile.balancing.affinity_secs;
            let (chains, name) = way.chains(affinity.is_some(), node.inside);
            parts.shared.extend(chains);
            parts.add(frontend, FRONTENDS, goto(name));
            if let Some(seconds) = affinity {
                parts.shared.push(learning(seconds));
                parts.add(frontend, STICKY, goto(learn(seconds)));
            }
        }
        let masquerading = match (profile.access.scope, profile.access.policy) {
            (Scope::Internal, _) => None,
            (_, TrafficPolicy::Cluster) => goto(MASQUERADE.into()),
            (_, TrafficPolicy::Local) => goto(LOCAL_ONLY.into()),
        };
        parts.add(frontend, EXTERNAL_FRONTENDS, masquerading);
        parts.guard(frontend, plan, way.is_some(), node.addresses);
        parts
    }

    /// Adds what rejects clients, if some or all are rejected.
    ///
    /// The verdict is a jump and not a goto, because the packets of admitted clients return to the rules that decide
    /// about masquerading.
    fn guard(
        &mut self,
        frontend: &Frontend,
        plan: &FrontendPlan,
        is_served: bool,
        node_addresses: &[IpAddr],
    ) {
        let access = &plan.profile.access;
        let rejecting = match (access.scope, access.endpoints) {
            (_, Availability::Usable) if is_served => None,
            // A client outside may reach another node by a load balancer, so its packets are dropped and not refused.
            // For a client inside, no other node serves the cluster IP.
            (Scope::External | Scope::NodePort, Availability::RemoteOnly) => Some(NOT_HERE),
            _ => Some(REFUSE),
        };
        let Some(allowed) = &access.source_ranges else {
            let verdict = rejecting.map(|chain| Verdict::Jump(chain.into()));
            return self.add(frontend, GUARDED, verdict);
        };
        let pass = match rejecting {
            Some(chain) => Verdict::Goto(chain.into()),
            None => Verdict::Return,
        };
        let mut sources = vec![allowed.clone()];
        // If service addresses are on a device, the node's own connections to a frontend have the frontend's
        // address as their source. If the ranges admit the node's address, these connections are admitted too.
        if node_addresses.iter().any(|&it| allowed.contains(it)) {
            sources.push(Networks::new(frontend.family(), [frontend.address.into()]));
        }
        sources.retain(|networks| !networks.is_empty());
        let admit = |networks| {
            let from = Match::Source(Relation::Is, networks);
            rule([from.into(), pass.clone().into()])
        };
        let drop_others = rule([Verdict::Drop.into()]);
        let rules: Vec<Rule> = sources
            .into_iter()
            .map(admit)
            .chain([drop_others])
            .collect();
        let name = ranges(frontend);
        self.own.add_chain(Chain::new(name.clone(), rules));
        self.add(frontend, GUARDED, Some(Verdict::Jump(name)));
    }

    fn add(&mut self, frontend: &Frontend, map: PerFamily, verdict: Option<Verdict>) {
        let element = verdict.map(|verdict| Element {
            key: key(frontend),
            verdict: Some(verdict),
        });
        insert(&mut self.own, map.of(frontend.family()), element);
    }
}

/// The facts of this node on which the parts of a frontend depend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    /// Its main addresses, at most one per family.
    pub(super) addresses: &'a [IpAddr],
    /// The clients inside the cluster.
    pub(super) inside: &'a [Match],
}

impl Slots {
    /// Returns the pick of these slots, which begin at `first`; `None` without slots.
    fn pick(&self, first: u32) -> Option<Pick> {
        let slots = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let draw = self.draw;
        (slots > 0).then_some(Pick { draw, slots, first })
    }
}

/// A table that gets the slots of a frontend.
trait WithSlots {
    fn insert_slots(&mut self, frontend: &Frontend, slots: &Present);
}

impl WithSlots for Table {
    fn insert_slots(&mut self, frontend: &Frontend, slots: &Present) {
        let Some(map) = self.sets.get_mut(ENDPOINTS.of(frontend.family())) else {
            return;
        };
        for (first, endpoints) in [(0, &slots.first), (OUTSIDE, &slots.outside)] {
            for (slot, endpoint) in (first..).zip(endpoints) {
                map.insert_target(slots::key(frontend, slot), *endpoint);
            }
        }
    }
}

fn insert(table: &mut Table, map: &str, element: Option<Element>) {
    if let (Some(map), Some(element)) = (table.sets.get_mut(map), element) {
        map.insert(element);
    }
}

/// Returns the key of `frontend` in maps.
fn key(frontend: &Frontend) -> Key {
    Key::new([
        frontend.address.into(),
        Value::Protocol(frontend.protocol),
        Value::Port(frontend.port),
    ])
}

/// Returns the chain that keeps a client's endpoint for so long after its last new connection.
///
/// After NAT, because the packet's destination is then the endpoint: nft 1.0.6 cannot print a rule that learns what
/// another lookup found.
fn learning(seconds: u32) -> Chain {
    let rules = FAMILIES.map(|family| {
        let client = Selector::OriginalSource(family);
        let key = original_key(family).into_iter().chain([client]);
        rule([Statement::Learn {
            family,
            map: AFFINITY.of(family).into(),
            key: key.collect(),
            timeout: Duration::from_secs(seconds.into()),
        }])
    });
    Chain::new(learn(seconds), rules)
}
