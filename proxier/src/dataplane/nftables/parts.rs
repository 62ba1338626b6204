//! The parts of the table that belong to one frontend or address, as a function of the plan.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nftables::{KeyType, Set, SetKind, Table, Verdict};

use super::names::{
    CLUSTER_IPS, COUNTED, ENDPOINTS, EXTERNAL_FRONTENDS, FRONTENDS, GUARDED, LOCAL_FRONTENDS,
    STICKY, learn,
};
use super::order::Served;
use super::pick::Route;
use super::slots::{self, Present};
use crate::cluster::model::{Family, TrafficPolicy};
use crate::dataplane::packet_rules::{
    LOCAL_ONLY, PINGABLE, Part, PerFamily, PlanView, SERVICE_ADDRESSES, guarding, key_of,
};
use crate::plan::frontend::Frontend;
use crate::plan::{Access, Availability, FrontendPlan, Scope};

/// The verdict maps whose keys are frontends.
const MAPS: [PerFamily; 4] = [FRONTENDS, GUARDED, LOCAL_FRONTENDS, STICKY];

/// Returns the sets that have elements of frontends, without elements.
pub(super) fn sets(family: Family) -> impl Iterator<Item = Set> {
    let frontend = [KeyType::Address(family), KeyType::Protocol, KeyType::Port];
    let slot: Vec<KeyType> = frontend.into_iter().chain([KeyType::Mark]).collect();
    let maps = MAPS.map(|name| Set::new(name.of(family), frontend, SetKind::Verdicts));
    let endpoints = Set::new(ENDPOINTS.of(family), slot, SetKind::Targets(family));
    let external = Set::new(EXTERNAL_FRONTENDS.of(family), frontend, SetKind::Set);
    maps.into_iter().chain([endpoints, external])
}

/// Returns the endpoints of `frontend` in `table`.
pub(crate) fn endpoints(table: &Table, frontend: &Frontend) -> BTreeSet<SocketAddr> {
    Present::of(table, frontend).endpoints().collect()
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
            key_of(frontend),
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
    let is_external = access.scope != Scope::Internal;
    if is_external && access.policy == TrafficPolicy::Local {
        add_to(LOCAL_FRONTENDS, Verdict::Goto(LOCAL_ONLY.into()));
    }
    if let Some(guarding) = guarding(frontend, access, route.is_some(), node_addresses) {
        add_to(GUARDED, guarding.verdict);
        guarding
            .chain
            .into_iter()
            .for_each(|it| add(Part::Chain(it)));
    }
    if is_external {
        let external = EXTERNAL_FRONTENDS.of(frontend.family());
        add(Part::Element(external, key_of(frontend).into()));
    }
}

/// Returns the counter of the new connections of `frontend`.
pub(super) fn counter(frontend: &Frontend) -> Part {
    let set = COUNTED.of(frontend.family());
    Part::Element(set, key_of(frontend).into())
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
