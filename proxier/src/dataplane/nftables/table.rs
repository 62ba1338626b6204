//! The table of this node, which follows the plan.
//!
//! It is not in memory: what a frontend or an address needs is a function of the plan, of the node and of the order of slots.
//! A change is what the touched ones had and what they get; the whole table is made when it must be written or compared.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nftables::{Chain, Command, Match, Set, Table, Value};

use super::chains;
use super::names::COUNTED;
use super::order::{Order, Served};
use super::parts;
use super::pick::Route;
use super::slots::Present;
use crate::cluster::model::Node;
use crate::dataplane::ipvs::filter::{FilterConfig, NodeFacts};
use crate::dataplane::packet_rules::{
    Additions, Changes, HAIRPIN, HEALTH_CHECK_PORTS, LocalClients, Part, Parts, PlanView, key_of,
    unallocated,
};
use crate::plan::frontend::Frontend;
use crate::plan::{Changed, Desired, FrontendPlan};

#[cfg(test)]
mod tests;

/// The number of parts that are made at once when a table is created.
const PARTS_AT_ONCE: usize = 4_096;

/// The number of parts after which the sets of a whole table are packed while it is made.
const PACKED_AFTER: usize = 20_000;

/// Returns the table of a node that has to serve `desired`.
pub fn table(desired: &Desired, config: &FilterConfig, node: Option<&Node>) -> Table {
    ServiceTable::like(&Table::default(), desired, config, node).table(desired)
}

/// What the table of this node follows from beside the plan, and its changes since they were last taken.
///
/// The methods get the plan of the last call of [`ServiceTable::like`] or [`ServiceTable::follow`].
#[derive(Clone, Debug)]
pub struct ServiceTable {
    config: FilterConfig,
    node: NodeFacts,
    /// The clients inside the cluster.
    inside: Vec<Match>,
    /// The frontends whose connections are counted. If there are too many frontends, those that are counted stay so: a
    /// tenant with many Services takes no counter from others.
    counted: BTreeSet<Frontend>,
    /// The orders of slots that differ from those of the plan.
    orders: BTreeMap<Frontend, Order>,
    /// The chains that exist on demand, by name.
    shared: BTreeMap<Arc<str>, Shared>,
    changes: Changes,
    /// Whether clients with affinity may be led to endpoints that their frontends no longer have.
    pub(super) must_forget: bool,
    /// The endpoints that serve clients outside the cluster no longer, since the last time that clients were forgotten.
    pub(super) withdrawn: BTreeMap<Frontend, BTreeSet<SocketAddr>>,
}

/// A chain that frontends share.
#[derive(Clone, Debug)]
struct Shared {
    chain: Chain,
    /// The number of frontends that lead to it.
    users: usize,
}

/// Something that has parts of the table.
#[derive(Clone, Copy)]
enum Subject {
    Frontend(Frontend),
    Address(IpAddr),
    LocalEndpoint(IpAddr),
    HealthCheck(u16),
    ServiceRanges,
}

impl ServiceTable {
    /// Returns the table of a node without Services.
    pub fn new(config: &FilterConfig, node: Option<&Node>) -> Self {
        let node = NodeFacts::of(node);
        Self {
            config: config.clone(),
            inside: LocalClients::on(config, &node).inside(),
            node,
            counted: BTreeSet::new(),
            orders: BTreeMap::new(),
            shared: BTreeMap::new(),
            changes: Changes::default(),
            must_forget: false,
            withdrawn: BTreeMap::new(),
        }
    }

    /// Returns the table of a node that has to serve `desired`, with the order of slots that is nearest to that in
    /// `model`.
    pub fn like(
        model: &Table,
        desired: &Desired,
        config: &FilterConfig,
        node: Option<&Node>,
    ) -> Self {
        let mut table = Self::new(config, node);
        let was_counted = |frontend: &Frontend| {
            let set = model.sets.get(COUNTED.of(frontend.family()));
            set.is_some_and(|set| set.contains(&key_of(frontend)))
        };
        let counted = in_table(desired).map(|(frontend, _)| *frontend);
        let counted = counted.filter(was_counted).take(config.most_counted);
        table.counted = counted.collect();
        table.counted.append(&mut table.next_counted(desired));
        let mut routes = Vec::new();
        for (frontend, plan) in in_table(desired) {
            let present = Present::of(model, frontend);
            let served = table.reorder(*frontend, Some(plan), &present);
            let served = served.unwrap_or_default();
            table.note_leaving(*frontend, plan, &served, &present, false);
            routes.extend(parts::route(plan, &served));
        }
        table.share(routes);
        table
    }

    /// Returns whether it depends on `node` as it is.
    pub fn is_on(&self, node: Option<&Node>) -> bool {
        self.node == NodeFacts::of(node)
    }

    /// Follows a change of our Node, on which any rule may depend.
    pub fn move_to(&mut self, desired: &Desired, node: Option<&Node>) {
        self.node = NodeFacts::of(node);
        self.inside = LocalClients::on(&self.config, &self.node).inside();
        self.shared.clear();
        let routes = in_table(desired);
        let routes = routes.filter_map(|(it, plan)| parts::route(plan, &Served::of(it, plan)));
        self.share(routes.collect());
    }

    /// Returns the whole table.
    ///
    /// # Cost
    /// Linear in the plan.
    pub fn table(&self, desired: &Desired) -> Table {
        let mut table = self.frame();
        let mut count = 0;
        for subject in subjects(desired) {
            self.add_parts(subject, PlanView::now(desired), &mut |part| {
                part.put_into(&mut table);
                count += 1;
                if count % PACKED_AFTER == 0 {
                    table.sets.values_mut().for_each(Set::pack);
                }
            });
        }
        table
    }

    /// Returns the sets without elements, and the chains that belong to no frontend.
    pub fn frame(&self) -> Table {
        let mut table = chains::skeleton(&self.config, &self.node);
        let shared = self.shared.values().map(|shared| &shared.chain);
        shared.for_each(|chain| table.add_chain(chain.clone()));
        table
    }

    /// Returns the commands that add the rest of the table to the frame, in pieces.
    pub fn pieces<'a>(&'a self, desired: &'a Desired) -> impl Iterator<Item = Vec<Command>> + 'a {
        let mut subjects = subjects(desired).peekable();
        std::iter::from_fn(move || {
            subjects.peek()?;
            let (mut piece, mut count) = (Additions::default(), 0);
            while count < PARTS_AT_ONCE
                && let Some(subject) = subjects.next()
            {
                self.add_parts(subject, PlanView::now(desired), &mut |part| {
                    piece.add(part);
                    count += 1;
                });
            }
            Some(piece.into_commands())
        })
    }

    /// Follows the plan, which differs from that of the last call in `changed`.
    ///
    /// A chain that a change leaves without a frontend stays until [`Self::sweep`].
    pub fn follow(&mut self, desired: &Desired, changed: &Changed) {
        let views = [PlanView::before(desired, changed), PlanView::now(desired)];
        let mut addresses = changed.addresses.clone();
        for frontend in changed.frontends.iter().filter(|it| !it.needs_relay()) {
            self.follow_frontend(*frontend, views.map(|view| view.frontend(frontend)));
            addresses.insert(frontend.address);
        }
        self.count(desired, changed);
        let addresses = addresses.into_iter().map(Subject::Address);
        let local = changed.local_endpoints.iter().copied();
        let ports = changed.health_checks.iter().copied();
        let others = addresses.chain(local.map(Subject::LocalEndpoint));
        let ranges = changed.service_ranges.then_some(Subject::ServiceRanges);
        let others = others.chain(ports.map(Subject::HealthCheck));
        for subject in others.chain(ranges) {
            let [old, new] = views.map(|view| collect(|add| self.add_parts(subject, view, add)));
            self.changes.note(old, new);
        }
    }

    /// Returns whether the connections of a frontend are counted.
    pub(super) fn counts(&self, frontend: &Frontend) -> bool {
        self.counted.contains(frontend)
    }

    /// Returns the frontends that are not counted and for which there is room: a counter has memory for every processor.
    fn next_counted(&self, desired: &Desired) -> BTreeSet<Frontend> {
        let most = self.config.most_counted;
        let all = desired.frontends.len() - desired.needing_relay().count();
        let room = most.min(all).saturating_sub(self.counted.len());
        if room == 0 {
            return BTreeSet::new();
        }
        let frontends = in_table(desired).map(|(frontend, _)| *frontend);
        frontends.filter(|it| !self.counts(it)).take(room).collect()
    }

    /// Notes which frontends lose their counters, and which get one.
    fn count(&mut self, desired: &Desired, changed: &Changed) {
        let gone = changed.frontends.iter();
        let gone = gone.filter(|frontend| !desired.frontends.contains_key(frontend));
        let gone: Vec<Frontend> = gone.filter_map(|it| self.counted.take(it)).collect();
        let mut added: BTreeSet<Frontend> = BTreeSet::new();
        // Those that changed first: in a small table, no others need one.
        let changed = changed.frontends.iter();
        let present = changed.filter(|it| desired.frontends.contains_key(it) && !it.needs_relay());
        for frontend in present {
            if self.counted.len() < self.config.most_counted && self.counted.insert(*frontend) {
                added.insert(*frontend);
            }
        }
        let others = self.next_counted(desired);
        self.counted.extend(&others);
        added.extend(others);
        let counters = |frontends: &mut dyn Iterator<Item = &Frontend>| -> Parts {
            let counters = frontends.map(parts::counter);
            counters.map(|part| (part.name(), part)).collect()
        };
        let [old, new] = [counters(&mut gone.iter()), counters(&mut added.iter())];
        self.changes.note(old, new);
    }

    /// Returns the commands of the changes since the last call, for one transaction.
    pub fn take_commands(&mut self) -> Vec<Command> {
        let changes = std::mem::take(&mut self.changes);
        let tables = changes.tables(chains::sets);
        tables.map_or_else(Vec::new, |(old, new)| old.difference(&new))
    }

    /// Returns the commands that delete the chains to which no frontend leads.
    ///
    /// They belong in another transaction than the one that removed the last frontend: before Linux 6.2 the kernel
    /// counts a deleted element as a user of its chain until that transaction is complete.
    pub fn sweep(&mut self) -> Vec<Command> {
        let mut unused = Table::default();
        self.shared.retain(|_, shared| {
            if shared.users == 0 {
                unused.add_chain(shared.chain.clone());
            }
            shared.users > 0
        });
        unused.difference(&Table::default())
    }

    /// Gives a frontend the slots of its second plan in place of those of the first.
    fn follow_frontend(&mut self, frontend: Frontend, plans: [Option<&FrontendPlan>; 2]) {
        let [before, after] = plans;
        let had = before.map(|plan| self.served(&frontend, plan));
        let nothing = Present::default();
        let present = had.as_ref().map_or(&nothing, |served| &served.slots);
        let has = self.reorder(frontend, after, present);
        let [old, new] = [before.zip(had.as_ref()), after.zip(has.as_ref())];
        let routes = [old, new].map(|it| it.and_then(|(plan, served)| parts::route(plan, served)));
        let [old_parts, mut new_parts] = [old, new].map(|it| {
            collect(|add| {
                if let Some((plan, served)) = it {
                    parts::of_frontend(&frontend, plan, served, &self.node.addresses, add);
                }
            })
        });
        let [old_route, new_route] = routes;
        if let Some((plan, served)) = new {
            let was_sticky = old_route.is_some_and(|route| route.affinity_secs.is_some());
            self.note_leaving(frontend, plan, served, present, was_sticky);
        }
        if old_route != new_route {
            self.leave(old_route);
            let chains = self.share(new_route.into_iter().collect()).into_iter();
            let chains = chains.map(Part::Chain).map(|part| (part.name(), part));
            new_parts.extend(chains);
        }
        self.changes.note(old_parts, new_parts);
    }

    /// Returns what the clients of a frontend with this plan get, whose order is remembered.
    fn served(&self, frontend: &Frontend, plan: &FrontendPlan) -> Served {
        let served = Served::of(frontend, plan);
        match self.orders.get(frontend) {
            Some(order) => served.in_order(order),
            None => served,
        }
    }

    /// Remembers the order in which a frontend's slots change the fewest `present` ones. Returns these slots.
    fn reorder(
        &mut self,
        frontend: Frontend,
        plan: Option<&FrontendPlan>,
        present: &Present,
    ) -> Option<Served> {
        let served = plan.map(|plan| Served::of(&frontend, plan));
        let order = served.as_ref().map(|served| served.order_like(present));
        match order.filter(|order| !order.is_planned()) {
            None => {
                self.orders.remove(&frontend);
                served
            }
            Some(order) => {
                let served = served.map(|served| served.in_order(&order));
                self.orders.insert(frontend, order);
                served
            }
        }
    }

    /// Notes which endpoints of those that a frontend with session affinity `had` it has no longer.
    fn note_leaving(
        &mut self,
        frontend: Frontend,
        plan: &FrontendPlan,
        served: &Served,
        had: &Present,
        was_sticky: bool,
    ) {
        let route = parts::route(plan, served);
        if route.is_none_or(|route| route.affinity_secs.is_none()) {
            return;
        }
        // Also if affinity begins: it may have ended a moment ago, when the frontend had other endpoints.
        self.must_forget |= !was_sticky || !had.is_within(&served.slots);
        // An endpoint that still serves clients inside is gone for clients outside.
        let outside = match plan.inside {
            Some(_) => &served.slots.outside,
            None => &served.slots.first,
        };
        let outside: BTreeSet<&SocketAddr> = outside.iter().collect();
        let had = had.for_outside().iter();
        let mut withdrawn = had.filter(|it| !outside.contains(it)).peekable();
        if withdrawn.peek().is_some() {
            self.must_forget = true;
            let all = self.withdrawn.entry(frontend).or_default();
            all.extend(withdrawn);
        }
    }

    /// Counts a frontend for each of these routes. Returns the chains that did not exist.
    fn share(&mut self, routes: Vec<Route>) -> Vec<Chain> {
        let mut users = BTreeMap::<Route, usize>::new();
        for route in routes.into_iter().filter(|route| !route.is_prepared()) {
            *users.entry(route).or_default() += 1;
        }
        let mut added = Vec::new();
        for (route, count) in users {
            for chain in route.chains(&self.inside) {
                let shared = self.shared.entry(chain.name.clone());
                let shared = shared.or_insert_with(|| {
                    added.push(chain.clone());
                    Shared { chain, users: 0 }
                });
                shared.users += count;
            }
        }
        added
    }

    /// Discounts a frontend.
    fn leave(&mut self, route: Option<Route>) {
        let chains = route
            .into_iter()
            .flat_map(|route| route.chains(&self.inside));
        for chain in chains.collect::<Vec<_>>() {
            if let Some(shared) = self.shared.get_mut(&chain.name) {
                shared.users = shared.users.saturating_sub(1);
            }
        }
    }

    /// Calls `add` with the parts that `subject` needs according to `view`.
    fn add_parts(&self, subject: Subject, view: PlanView<'_>, add: &mut dyn FnMut(Part)) {
        match subject {
            Subject::Frontend(frontend) => {
                let Some(plan) = view.frontend(&frontend) else {
                    return;
                };
                let served = self.served(&frontend, plan);
                parts::of_frontend(&frontend, plan, &served, &self.node.addresses, add);
                if self.counts(&frontend) {
                    add(parts::counter(&frontend));
                }
            }
            Subject::Address(address) => parts::of_address(address, view, add),
            Subject::LocalEndpoint(address) => {
                if view.has_local_endpoint(address) {
                    let set = HAIRPIN.of(address.into());
                    add(Part::member(set, [address.into(), address.into()]));
                }
            }
            Subject::HealthCheck(port) => {
                if view.has_health_check(port) {
                    add(Part::member(HEALTH_CHECK_PORTS, [Value::Port(port)]));
                }
            }
            Subject::ServiceRanges => unallocated(view.service_ranges()).into_iter().for_each(add),
        }
    }
}

/// Returns the parts that `add_all` adds.
fn collect(add_all: impl FnOnce(&mut dyn FnMut(Part))) -> Parts {
    let mut parts = Parts::new();
    add_all(&mut |part| _ = parts.insert(part.name(), part));
    parts
}

/// Returns all of the plan that has parts of the table.
fn subjects(desired: &Desired) -> impl Iterator<Item = Subject> {
    let frontends = in_table(desired).map(|(frontend, _)| Subject::Frontend(*frontend));
    let addresses = desired.addresses.keys().copied();
    let local = desired.local_endpoints.iter().copied();
    let ports = desired.health_checks.keys().copied();
    let others = addresses.map(Subject::Address);
    let others = others.chain(local.map(Subject::LocalEndpoint));
    let others = others.chain(ports.map(Subject::HealthCheck));
    frontends.chain(others).chain([Subject::ServiceRanges])
}

/// Returns the frontends that the table serves.
fn in_table(desired: &Desired) -> impl Iterator<Item = (&Frontend, &FrontendPlan)> {
    let plans = desired.frontends.iter();
    plans.filter(|(frontend, _)| !frontend.needs_relay())
}
