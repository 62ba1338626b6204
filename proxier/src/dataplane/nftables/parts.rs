//! The parts of the table that belong to one frontend or address, as a function of the plan.

use std::net::IpAddr;
use std::sync::Arc;

use nftables::{Chain, Key, KeyType, Match, Relation, Rule, Set, SetKind, Value, Verdict};

use super::names::*;
use super::order::Served;
use super::pick::Route;
use super::slots;
use crate::cluster::model::{Family, Networks, TrafficPolicy};
use crate::dataplane::packet_rules::{Part, PerFamily, PlanView, ranges, rule};
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Availability, FrontendPlan, Scope};

/// The verdict maps whose keys are frontends.
const MAPS: [PerFamily; 4] = [FRONTENDS, GUARDED, EXTERNAL_FRONTENDS, STICKY];

/// Returns the sets that have elements of frontends, without elements.
pub(super) fn sets(family: Family) -> impl Iterator<Item = Set> {
    let frontend = [KeyType::Address(family), KeyType::Protocol, KeyType::Port];
    let slot: Vec<KeyType> = frontend.into_iter().chain([KeyType::Mark]).collect();
    let maps = MAPS.map(|name| Set::new(name.of(family), frontend, SetKind::Verdicts));
    let endpoints = Set::new(ENDPOINTS.of(family), slot, SetKind::Targets(family));
    maps.into_iter().chain([endpoints])
}

/// Returns the chains through which clients of a frontend go, which serves them with `served`; `None` without slots.
pub(super) fn route(plan: &FrontendPlan, served: &Served) -> Option<Route> {
    let affinity_secs = plan.profile.balancing.affinity_secs;
    served.way.map(|way| Route { way, affinity_secs })
}

/// Calls `add` with the parts that only `frontend` has. `node_addresses` are the main ones, at most one per family.
pub(super) fn of_frontend(
    frontend: &Frontend,
    plan: &FrontendPlan,
    served: &Served,
    node_addresses: &[IpAddr],
    add: &mut dyn FnMut(Part),
) {
    let endpoints = ENDPOINTS.of(frontend.family());
    for (slot, endpoint) in served.slots.numbered() {
        add(Part::Target(
            endpoints,
            slots::key(frontend, slot),
            endpoint,
        ));
    }
    let mut add_to = |map: PerFamily, verdict| {
        add(Part::entry(
            map.of(frontend.family()),
            key(frontend),
            verdict,
        ));
    };
    let route = route(plan, served);
    if let Some(route) = route {
        add_to(FRONTENDS, Verdict::Goto(route.name()));
        if let Some(seconds) = route.affinity_secs {
            add_to(STICKY, Verdict::Goto(learn(seconds)));
        }
    }
    let access = &plan.profile.access;
    match (access.scope, access.policy) {
        (Scope::Internal, _) => {}
        (_, TrafficPolicy::Cluster) => add_to(EXTERNAL_FRONTENDS, Verdict::Goto(MASQUERADE.into())),
        (_, TrafficPolicy::Local) => add_to(EXTERNAL_FRONTENDS, Verdict::Goto(LOCAL_ONLY.into())),
    }
    let (chain, guard) = guard(frontend, access, route.is_some(), node_addresses);
    // The verdict is a jump and not a goto, because the packets of admitted clients return to the rules that decide about
    // masquerading.
    if let Some(guard) = guard {
        add_to(GUARDED, Verdict::Jump(guard));
    }
    if let Some(chain) = chain {
        add(Part::Chain(chain));
    }
}

/// Returns the chain of the source ranges of a frontend, if it has some, and the name of the chain that rejects clients, if
/// some or all are rejected.
fn guard(
    frontend: &Frontend,
    access: &Access,
    is_served: bool,
    node_addresses: &[IpAddr],
) -> (Option<Chain>, Option<Arc<str>>) {
    let rejecting = match (access.scope, access.endpoints) {
        (_, Availability::Usable) if is_served => None,
        // A client outside may reach another node by a load balancer, so its packets are dropped and not refused.
        // For a client inside, no other node serves the cluster IP.
        (Scope::External | Scope::NodePort, Availability::RemoteOnly) => Some(NOT_HERE),
        _ => Some(REFUSE),
    };
    let Some(allowed) = &access.source_ranges else {
        return (None, rejecting.map(Arc::from));
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
    (Some(Chain::new(name.clone(), rules)), Some(name))
}

/// Calls `add` with the memberships of a service address.
pub(super) fn of_address(address: IpAddr, view: PlanView<'_>, add: &mut dyn FnMut(Part)) {
    if !view.has_address(address) {
        return;
    }
    let frontends = || {
        view.frontends_at(address)
            .filter_map(|it| view.frontend(it))
    };
    let has_any = |is: fn(&Access) -> bool| frontends().any(|plan| is(&plan.profile.access));
    let serves = has_any(|access| access.endpoints != Availability::None);
    let is_cluster_ip = has_any(|access| access.scope == Scope::Internal);
    for (set, is_in) in [
        (SERVICE_ADDRESSES, true),
        (PINGABLE, serves),
        (CLUSTER_IPS, is_cluster_ip),
    ] {
        if is_in {
            add(Part::member(set.of(address.into()), [address.into()]));
        }
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
