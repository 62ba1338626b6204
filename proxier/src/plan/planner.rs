//! The incremental form of [`super::desired`]: replans only the touched Services.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::context::Context;
use super::health::HealthPorts;
use super::precedence::{conflict, precedence};
use super::service::{Requirements, requirements};
use super::{Desired, Machine, PlanConfig, VirtualServer};
use crate::model::{ObjectName, Service};
use crate::packed::pack;
use crate::problem::Problem;
use crate::store::{Snapshot, Touched};

mod changed;
mod users;

pub use changed::Changed;
use changed::{LocalAddress, Previous};
use users::Users;

/// The up-to-date plan of a node.
///
/// # Invariant
/// After any sequence of updates the plan equals [`super::desired`] of the last input. Two properties
/// ensure that: the requirements of a Service depend on its own objects and the node only, and the
/// winner of a contested frontend is chosen from all Services that claim it.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlanConfig,
    machine: Machine,
    desired: Desired,
    footprints: BTreeMap<ObjectName, Footprint>,
    /// The Services whose footprints have problems, so that [`Planner::problems`] need not walk over all.
    faulty: BTreeSet<ObjectName>,
    /// Virtual servers that lost their frontend to another Service.
    losers: BTreeMap<ipvs::ServiceKey, Vec<VirtualServer>>,
    /// The number of Services that require each local address. A kept address has one user more.
    address_users: Users,
    /// The addresses that stay local even if no Service requires them.
    kept_addresses: BTreeSet<IpAddr>,
    /// The number of Services with a local endpoint at each address.
    local_endpoint_users: Users,
    health_ports: HealthPorts,
    /// Problems of the configuration and of the Node object.
    common_problems: Vec<Problem>,
}

/// The parts of the plan that one Service required.
#[derive(Clone, Debug)]
struct Footprint {
    keys: Box<[ipvs::ServiceKey]>,
    addresses: Box<[IpAddr]>,
    local_endpoints: Box<[IpAddr]>,
    health_port: Option<u16>,
    problems: Box<[Problem]>,
}

impl Planner {
    /// Returns a planner with an empty plan.
    pub fn new(config: PlanConfig) -> Self {
        let desired = Desired {
            // Even without a service address, because Felix restarts whenever the device appears or
            // disappears.
            needs_carrier: config.service_addresses.use_carrier(),
            ..Desired::default()
        };
        Self {
            config,
            machine: Machine::default(),
            desired,
            footprints: BTreeMap::new(),
            faulty: BTreeSet::new(),
            losers: BTreeMap::new(),
            address_users: Users::default(),
            kept_addresses: BTreeSet::new(),
            local_endpoint_users: Users::default(),
            health_ports: HealthPorts::default(),
            common_problems: Vec::new(),
        }
    }

    /// Replans the touched Services, or all if the machine changed.
    ///
    /// # Cost
    /// Proportional to the touched Services and their endpoints, times the logarithm of all.
    pub fn update(&mut self, snapshot: &Snapshot, machine: &Machine, touched: Touched) -> Changed {
        let touched = if self.machine == *machine {
            touched
        } else {
            self.machine = machine.clone();
            Touched::All
        };
        let is_all = touched == Touched::All;
        let names: BTreeSet<ObjectName> = match touched {
            Touched::Some(names) => names,
            Touched::All => {
                // A deleted Service has only a footprint, which must be withdrawn.
                let all = snapshot.service_names();
                all.chain(self.footprints.keys().cloned()).collect()
            }
        };
        // A full update continues even without Services, because it renews the common problems.
        if names.is_empty() && !is_all {
            return Changed::default();
        }
        // Moved out of `self`, because the context borrows it while `plan` borrows `self`. Not cloned,
        // because a node may have thousands of addresses.
        let machine = std::mem::take(&mut self.machine);
        let config = self.config.clone();
        let context = Context::new(snapshot, &machine, &config);
        let changed = self.plan(&names, &context);
        if is_all {
            self.common_problems = context.problems();
            // After a full update nearly every entry is new, so the maps have much spare memory. After a
            // partial update, packing would cost more than it saves.
            pack(&mut self.desired.virtual_servers);
            pack(&mut self.desired.addresses);
            pack(&mut self.footprints);
            self.address_users.pack();
        }
        drop(context);
        self.machine = machine;
        changed
    }

    /// Returns the operator's choices.
    pub fn config(&self) -> &PlanConfig {
        &self.config
    }

    /// Returns the plan.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Returns the plan, without the state for updates.
    pub fn into_desired(self) -> Desired {
        self.desired
    }

    /// Returns the problems of the input, sorted.
    ///
    /// # Cost
    /// Proportional to the problems, and to the health-check node ports.
    pub fn problems(&self, snapshot: &Snapshot) -> Vec<Problem> {
        let faulty = self.faulty.iter();
        let footprints = faulty.filter_map(|name| self.footprints.get(name));
        let of_services = footprints.flat_map(|footprint| &footprint.problems);
        let mut problems: Vec<Problem> = snapshot
            .problems()
            .chain(of_services)
            .chain(&self.common_problems)
            .cloned()
            .collect();
        for (key, losers) in &self.losers {
            if let Some(winner) = self.desired.virtual_servers.get(key) {
                problems.extend(losers.iter().map(|loser| conflict(*key, loser, winner)));
            }
        }
        problems.extend(self.health_ports.problems(snapshot));
        problems.sort();
        problems
    }

    /// Returns the virtual servers of `key` that lost it to another Service.
    pub fn losers(&self, key: &ipvs::ServiceKey) -> impl Iterator<Item = &VirtualServer> {
        self.losers.get(key).into_iter().flatten()
    }

    /// Returns the addresses that stay local even if no Service requires them.
    pub fn kept_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.kept_addresses
    }

    /// Replaces the addresses that stay local even if no Service requires them.
    ///
    /// Connections to retired virtual servers need these addresses.
    pub fn keep_addresses(&mut self, kept: BTreeSet<IpAddr>, snapshot: &Snapshot) -> Changed {
        if kept == self.kept_addresses {
            return Changed::default();
        }
        let before = std::mem::replace(&mut self.kept_addresses, kept);
        for address in &self.kept_addresses - &before {
            self.address_users.add(address);
        }
        let mut previous = Previous::default();
        for address in &before - &self.kept_addresses {
            self.release_address(address, &mut previous);
        }
        let (machine, config) = (self.machine.clone(), self.config.clone());
        self.plan_kept(&Context::new(snapshot, &machine, &config), &mut previous);
        previous.compare(&mut self.desired)
    }

    fn plan_kept(&mut self, context: &Context<'_>, previous: &mut Previous) {
        for &address in &self.kept_addresses {
            make_local(&mut self.desired, address, context, previous);
        }
    }

    /// Removes one user of an address. Removes the address if it was the last user.
    fn release_address(&mut self, address: IpAddr, previous: &mut Previous) {
        if self.address_users.remove(address) {
            let removed = self.desired.addresses.remove(&address);
            let removed = removed.map(LocalAddress::new);
            previous.addresses.entry(address).or_insert(removed);
        }
    }

    fn plan(&mut self, names: &BTreeSet<ObjectName>, context: &Context<'_>) -> Changed {
        let mut previous = Previous::default();
        // The source of a kept address may have changed with the node.
        self.plan_kept(context, &mut previous);
        // All withdrawals come before all claims: a frontend may move between two touched Services.
        for name in names {
            self.withdraw(name, &mut previous);
        }
        for name in names {
            if let Some(service) = context.snapshot.service(name) {
                let requirements = requirements(&service, context);
                self.claim(&service, requirements, context, &mut previous);
            }
        }
        for &key in previous.virtual_servers.keys() {
            self.resolve(key, context.snapshot);
        }
        for &port in previous.health_checks.keys() {
            let checks = &mut self.desired.health_checks;
            match self.health_ports.winner(port, context.snapshot) {
                Some(winner) => checks.insert(port, winner.clone()),
                None => checks.remove(&port),
            };
        }
        previous.compare(&mut self.desired)
    }

    /// Removes the requirements of `name` from the plan.
    fn withdraw(&mut self, name: &ObjectName, previous: &mut Previous) {
        let Some(footprint) = self.footprints.remove(name) else {
            return;
        };
        self.faulty.remove(name);
        for key in footprint.keys {
            let is_winner = |server: &VirtualServer| server.owner.service == *name;
            let winner = self.desired.virtual_servers.get(&key);
            let removed = if winner.is_some_and(is_winner) {
                self.desired.virtual_servers.remove(&key)
            } else {
                if let Some(losers) = self.losers.get_mut(&key) {
                    losers.retain(|server| server.owner.service != *name);
                }
                self.desired.virtual_servers.get(&key).cloned()
            };
            let removed = removed.map(Box::new);
            previous.virtual_servers.entry(key).or_insert(removed);
        }
        if let Some(port) = footprint.health_port {
            let check = || self.desired.health_checks.get(&port).cloned();
            previous.health_checks.entry(port).or_insert_with(check);
            self.health_ports.withdraw(port, name);
        }
        for address in footprint.addresses {
            self.release_address(address, previous);
        }
        for address in footprint.local_endpoints {
            if self.local_endpoint_users.remove(address) {
                let removed = self.desired.local_endpoints.remove(&address);
                previous.local_endpoints.entry(address).or_insert(removed);
            }
        }
    }

    /// Adds the requirements of `service`; [`Self::resolve`] chooses the winners afterwards.
    fn claim(
        &mut self,
        service: &Service,
        requirements: Requirements,
        context: &Context<'_>,
        previous: &mut Previous,
    ) {
        let mut keys = Vec::with_capacity(requirements.servers.len());
        for server in requirements.servers {
            let key = server.service.key;
            let winner = || {
                self.desired
                    .virtual_servers
                    .get(&key)
                    .cloned()
                    .map(Box::new)
            };
            previous.virtual_servers.entry(key).or_insert_with(winner);
            keys.push(key);
            // The winner is chosen only after all claims, because a later one may have precedence. Nearly
            // always the frontend is free.
            match self.desired.virtual_servers.entry(key) {
                Entry::Vacant(free) => {
                    free.insert(server);
                }
                Entry::Occupied(_) => self.losers.entry(key).or_default().push(server),
            }
        }
        for &address in &requirements.addresses {
            self.address_users.add(address);
            make_local(&mut self.desired, address, context, previous);
        }
        for &address in &requirements.local_endpoints {
            self.local_endpoint_users.add(address);
            let was_known = !self.desired.local_endpoints.insert(address);
            previous.local_endpoints.entry(address).or_insert(was_known);
        }
        let health_port = requirements.health_check.as_ref().map(|&(port, _)| port);
        if let Some((port, check)) = requirements.health_check {
            let known = || self.desired.health_checks.get(&port).cloned();
            previous.health_checks.entry(port).or_insert_with(known);
            self.health_ports.claim(port, check);
        }
        if !requirements.problems.is_empty() {
            self.faulty.insert(service.name.clone());
        }
        let footprint = Footprint {
            keys: keys.into(),
            addresses: requirements.addresses.into(),
            local_endpoints: requirements.local_endpoints.into_iter().collect(),
            health_port,
            problems: requirements.problems.into(),
        };
        self.footprints.insert(service.name.clone(), footprint);
    }

    /// Gives a contested frontend to the claim with the highest precedence.
    fn resolve(&mut self, key: ipvs::ServiceKey, snapshot: &Snapshot) {
        let Some(mut claims) = self.losers.remove(&key) else {
            return;
        };
        claims.extend(self.desired.virtual_servers.remove(&key));
        // All are sorted, not only the winner found: the order of the losers must not depend on
        // that of the events.
        claims.sort_by(|one, other| precedence(one, snapshot).cmp(&precedence(other, snapshot)));
        let mut claims = claims.into_iter();
        if let Some(winner) = claims.next() {
            self.desired.virtual_servers.insert(key, winner);
        }
        if claims.len() > 0 {
            self.losers.insert(key, claims.collect());
        }
    }
}

/// Adds an address to the plan, with the source that it has on this node.
fn make_local(
    desired: &mut Desired,
    address: IpAddr,
    context: &Context<'_>,
    previous: &mut Previous,
) {
    let replaced = desired.addresses.insert(address, context.source(address));
    let replaced = replaced.map(LocalAddress::new);
    previous.addresses.entry(address).or_insert(replaced);
}
