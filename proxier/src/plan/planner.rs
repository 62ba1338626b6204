//! The incremental form of [`super::desired`]: replans only the touched Services.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::context::Context;
use super::elsewhere::Elsewhere;
use super::health::HealthPorts;
use super::precedence::{conflict, precedence};
use super::service::{Requirements, requirements};
use super::service_ranges;
use super::{Capabilities, Desired, FrontendPlan, Machine, PlanConfig};
use crate::cluster::model::ObjectName;
use crate::cluster::problem::{MAX_PROBLEMS, Problem, ProblemList};
use crate::cluster::store::{Snapshot, Touched};
use crate::plan::frontend::Frontend;
use crate::util::packed::pack;

mod changed;
mod footprint;
mod profiles;
mod shared;

pub use changed::Changed;
use footprint::Footprint;
use profiles::Profiles;
use shared::SharedAddresses;

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
    capabilities: Capabilities,
    /// What the last update knew of other machines.
    elsewhere: Elsewhere,
    desired: Desired,
    footprints: BTreeMap<ObjectName, Footprint>,
    /// The Services whose footprints have problems, so that [`Planner::problems`] need not walk over all.
    faulty: BTreeSet<ObjectName>,
    /// The plans of frontends that another Service got.
    losers: BTreeMap<Frontend, Vec<FrontendPlan>>,
    /// The local addresses that several Services require. A kept address has one user more.
    shared_addresses: SharedAddresses,
    /// The addresses that stay local even if no Service requires them.
    kept_addresses: BTreeSet<IpAddr>,
    /// The addresses at which several Services have a local endpoint.
    shared_endpoints: SharedAddresses,
    health_ports: HealthPorts,
    profiles: Profiles,
    /// Problems of the configuration and of the Node object.
    common_problems: Vec<Problem>,
    /// The number of problems in footprints.
    listed_problems: usize,
    /// Increases when a problem may have changed.
    problems_revision: u64,
}

impl Planner {
    /// Returns a planner with an empty plan.
    pub fn new(config: PlanConfig) -> Self {
        Self {
            config,
            machine: Machine::default(),
            capabilities: Capabilities::default(),
            elsewhere: Elsewhere::default(),
            desired: Desired::default(),
            footprints: BTreeMap::new(),
            faulty: BTreeSet::new(),
            losers: BTreeMap::new(),
            shared_addresses: SharedAddresses::default(),
            kept_addresses: BTreeSet::new(),
            shared_endpoints: SharedAddresses::default(),
            health_ports: HealthPorts::default(),
            profiles: Profiles::default(),
            common_problems: Vec::new(),
            listed_problems: 0,
            problems_revision: 0,
        }
    }

    /// Replans the touched Services, or all if the machine or the dataplane's capabilities changed.
    ///
    /// # Cost
    /// Proportional to the touched Services and their endpoints, times the logarithm of all. If the addresses of other
    /// machines changed, also linear in all Services, which are looked at but not planned.
    pub fn update(
        &mut self,
        snapshot: &Snapshot,
        machine: &Machine,
        capabilities: &Capabilities,
        touched: Touched,
    ) -> Changed {
        let elsewhere = Elsewhere::new(snapshot, machine);
        let moved = elsewhere.differences(&self.elsewhere);
        self.elsewhere = elsewhere;
        self.machine.peers.clone_from(&machine.peers);
        let ranges = service_ranges::rejecting(&self.config, snapshot, machine);
        let judged = machine.standings.differences(&self.machine.standings);
        self.machine.standings.clone_from(&machine.standings);
        let mut changed = match touched {
            Touched::Some(mut names)
                if self.machine == *machine && self.capabilities == *capabilities =>
            {
                names.extend(judged);
                if !moved.is_empty() {
                    let footprints = self.footprints.iter();
                    let concerned = footprints.filter(|(_, it)| it.concerns(&moved));
                    names.extend(concerned.map(|(name, _)| name.clone()));
                }
                self.replan(&names, snapshot)
            }
            _ => self.replan_all(snapshot, machine, capabilities),
        };
        changed.service_ranges = self.desired.service_ranges != ranges;
        if changed.service_ranges {
            let before = std::mem::replace(&mut self.desired.service_ranges, ranges);
            changed.before.service_ranges = before;
        }
        changed
    }

    /// Returns whether `service` has `address`, but another machine does too, so that it is not programmed.
    pub(crate) fn is_elsewhere(&self, address: &IpAddr, service: &ObjectName) -> bool {
        let footprint = self.footprints.get(service);
        footprint.is_some_and(|footprint| footprint.rare().elsewhere.contains(address))
    }

    /// Returns the frontends that `service` asks for.
    pub(crate) fn frontends_of(&self, service: &ObjectName) -> &[Frontend] {
        let footprint = self.footprints.get(service);
        footprint.map_or(&[], |footprint| &footprint.frontends)
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

    /// Returns the problems of the input, sorted. If there are too many, the last one has the number of the others.
    ///
    /// # Cost
    /// Proportional to the problems, and to the health-check node ports.
    pub fn problems(&self, snapshot: &Snapshot) -> Vec<Problem> {
        let mut problems = ProblemList::default();
        self.list_problems(snapshot, &mut problems);
        problems.finish()
    }

    /// Returns a number that increases when a problem may have changed. Those of the snapshot have one of their own.
    pub(crate) fn problems_revision(&self) -> u64 {
        self.problems_revision
    }

    /// Adds the problems of the input to `problems`.
    pub(crate) fn list_problems(&self, snapshot: &Snapshot, problems: &mut ProblemList) {
        let faulty = self.faulty.iter();
        let footprints = faulty.filter_map(|name| self.footprints.get(name));
        let of_services = footprints.flat_map(|footprint| &footprint.rare().problems);
        problems.extend(&self.common_problems);
        problems.extend(snapshot.problems());
        problems.leave_out(snapshot.unlisted());
        problems.extend(of_services);
        for (frontend, losers) in &self.losers {
            if let Some(winner) = self.desired.frontends.get(frontend) {
                for loser in losers {
                    problems.add(|| conflict(*frontend, loser, winner));
                }
            }
        }
        problems.extend(&self.health_ports.problems(snapshot));
    }

    /// Returns the plans of `frontend` that lost it to another Service.
    pub fn losers(&self, frontend: &Frontend) -> impl Iterator<Item = &FrontendPlan> {
        self.losers.get(frontend).into_iter().flatten()
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
        let mut changed = Changed::default();
        changed.note_addresses(&self.desired, self.kept_addresses.union(&before).copied());
        for address in &before - &self.kept_addresses {
            self.release_address(address);
        }
        let (machine, config) = (self.machine.clone(), self.config.clone());
        let capabilities = self.capabilities.clone();
        let context = Context::new(snapshot, &machine, &capabilities, &config);
        for address in &self.kept_addresses - &before {
            self.require_address(address, &context);
        }
        self.renew_kept(&context);
        changed.compare(&mut self.desired)
    }

    /// Renews the sources of the kept addresses, which may have changed with the node.
    fn renew_kept(&mut self, context: &Context<'_>) {
        for &address in &self.kept_addresses {
            let source = context.source(address);
            self.desired.addresses.insert(address, source);
        }
    }

    /// Adds a user of an address, which is local from now on.
    fn require_address(&mut self, address: IpAddr, context: &Context<'_>) {
        let source = context.source(address);
        if self.desired.addresses.insert(address, source).is_some() {
            self.shared_addresses.add_user(address);
        }
    }

    /// Removes a user of an address. Removes the address if it was the only user.
    fn release_address(&mut self, address: IpAddr) {
        if self.shared_addresses.remove_user(address) {
            self.desired.addresses.remove(&address);
        }
    }

    /// Plans everything anew, and compares with the plan before.
    fn replan_all(
        &mut self,
        snapshot: &Snapshot,
        machine: &Machine,
        capabilities: &Capabilities,
    ) -> Changed {
        let config = self.config.clone();
        let context = Context::new(snapshot, machine, capabilities, &config);
        let empty = Self {
            machine: machine.clone(),
            capabilities: capabilities.clone(),
            elsewhere: self.elsewhere.clone(),
            ..Self::new(config.clone())
        };
        let before = std::mem::replace(self, empty);
        (self.desired.service_ranges).clone_from(&before.desired.service_ranges);
        // Unchanged frontends keep theirs.
        self.profiles = before.profiles;
        self.problems_revision = before.problems_revision + 1;
        for &address in &before.kept_addresses {
            self.require_address(address, &context);
        }
        self.kept_addresses = before.kept_addresses;
        // In order of names, so that the map can be made of them at once, without searches.
        let mut footprints = Vec::with_capacity(snapshot.count_services());
        for service in snapshot.services() {
            let mut requirements = requirements(service, &context);
            self.limit_problems(&mut requirements);
            let footprint = Footprint::take(&mut requirements);
            self.claim(&service.name, requirements, &footprint, &context);
            footprints.push((service.name.clone(), footprint));
        }
        self.footprints = footprints.into_iter().collect();
        let contested: Vec<Frontend> = self.losers.keys().copied().collect();
        for frontend in contested {
            self.resolve(frontend, snapshot);
        }
        let ports: Vec<u16> = self.health_ports.ports().collect();
        for port in ports {
            self.choose_health_check(port, snapshot);
        }
        self.common_problems = context.problems();
        // Nearly every entry is new, so the maps have much spare memory. After a partial update, packing
        // would cost more than it saves.
        pack(&mut self.desired.frontends);
        pack(&mut self.desired.addresses);
        Changed::between(before.desired, &mut self.desired)
    }

    /// Plans the Services `names` anew.
    fn replan(&mut self, names: &BTreeSet<ObjectName>, snapshot: &Snapshot) -> Changed {
        if names.is_empty() {
            return Changed::default();
        }
        // Moved out of `self`, because the context borrows it while `self` changes. Not cloned, because a
        // node may have thousands of addresses.
        let machine = std::mem::take(&mut self.machine);
        let capabilities = std::mem::take(&mut self.capabilities);
        let config = self.config.clone();
        let context = Context::new(snapshot, &machine, &capabilities, &config);
        let mut changed = Changed::default();
        changed.note_addresses(&self.desired, self.kept_addresses.iter().copied());
        self.renew_kept(&context);
        // All withdrawals come before all claims: a frontend may move between two touched Services. A known name
        // shares its memory with the ledger and with the unchanged frontends.
        let withdraw = |name: &ObjectName| match self.footprints.remove_entry(name) {
            Some((known, footprint)) => {
                changed.note(&self.desired, &footprint);
                self.withdraw(&known, &footprint);
                known
            }
            None => name.clone(),
        };
        let names: Vec<ObjectName> = names.iter().map(withdraw).collect();
        for name in &names {
            if let Some(service) = snapshot.service(name) {
                let mut requirements = requirements(service, &context);
                self.limit_problems(&mut requirements);
                let footprint = Footprint::take(&mut requirements);
                changed.note(&self.desired, &footprint);
                self.claim(&service.name, requirements, &footprint, &context);
                self.footprints.insert(service.name.clone(), footprint);
            }
        }
        for &frontend in &changed.frontends {
            self.resolve(frontend, snapshot);
        }
        for &port in &changed.health_checks {
            self.choose_health_check(port, snapshot);
        }
        drop(context);
        self.machine = machine;
        self.capabilities = capabilities;
        changed.compare(&mut self.desired)
    }

    /// Drops the problems for which there is no room, except one, which stands for the others.
    fn limit_problems(&self, requirements: &mut Requirements) {
        let room = MAX_PROBLEMS.saturating_sub(self.listed_problems);
        requirements.problems.truncate(room.max(1));
    }

    /// Removes the requirements of `name`, which are `footprint`, from the plan.
    fn withdraw(&mut self, name: &ObjectName, footprint: &Footprint) {
        if self.faulty.remove(name) {
            self.problems_revision += 1;
        }
        for frontend in &footprint.frontends {
            let frontends = &mut self.desired.frontends;
            let is_winner = |plan: &FrontendPlan| plan.owner.service == *name;
            if frontends.get(frontend).is_some_and(is_winner) {
                frontends.remove(frontend);
            } else if let Some(losers) = self.losers.get_mut(frontend) {
                losers.retain(|plan| plan.owner.service != *name);
            }
        }
        for &address in &footprint.addresses {
            self.release_address(address);
        }
        self.listed_problems -= footprint.rare().problems.len();
        if let Some(port) = footprint.rare().health_port {
            self.problems_revision += u64::from(self.health_ports.is_contested(port));
            self.health_ports.withdraw(port, name);
        }
        for &address in &footprint.rare().local_endpoints {
            if self.shared_endpoints.remove_user(address) {
                self.desired.local_endpoints.remove(&address);
            }
        }
    }

    /// Adds the requirements of the Service `name`, which are also in `footprint`.
    ///
    /// [`Self::resolve`] chooses the winners afterwards.
    fn claim(
        &mut self,
        name: &ObjectName,
        requirements: Requirements,
        footprint: &Footprint,
        context: &Context<'_>,
    ) {
        for (frontend, mut plan) in requirements.frontends {
            self.profiles.share(&mut plan.profile);
            // The winner is chosen only after all claims, because a later one may have precedence. Nearly
            // always the frontend is free.
            match self.desired.frontends.entry(frontend) {
                Entry::Vacant(free) => _ = free.insert(plan),
                Entry::Occupied(_) => self.losers.entry(frontend).or_default().push(plan),
            }
        }
        if let Some((port, check)) = requirements.health_check {
            self.health_ports.claim(port, check);
            self.problems_revision += u64::from(self.health_ports.is_contested(port));
        }
        for &address in &footprint.addresses {
            self.require_address(address, context);
        }
        for &address in &footprint.rare().local_endpoints {
            if !self.desired.local_endpoints.insert(address) {
                self.shared_endpoints.add_user(address);
            }
        }
        if !footprint.rare().problems.is_empty() {
            self.listed_problems += footprint.rare().problems.len();
            self.problems_revision += 1;
            self.faulty.insert(name.clone());
        }
    }

    /// Gives a health-check port to the Service with the highest precedence.
    fn choose_health_check(&mut self, port: u16, snapshot: &Snapshot) {
        let checks = &mut self.desired.health_checks;
        match self.health_ports.winner(port, snapshot) {
            Some(winner) => checks.insert(port, winner.clone()),
            None => checks.remove(&port),
        };
    }

    /// Gives a contested frontend to the claim with the highest precedence.
    fn resolve(&mut self, frontend: Frontend, snapshot: &Snapshot) {
        let Some(mut claims) = self.losers.remove(&frontend) else {
            return;
        };
        self.problems_revision += 1;
        claims.extend(self.desired.frontends.remove(&frontend));
        // All are sorted, not only the winner found: the order of the losers must not depend on
        // that of the events.
        claims.sort_by_cached_key(|claim| precedence(claim, snapshot));
        let mut claims = claims.into_iter();
        if let Some(winner) = claims.next() {
            self.desired.frontends.insert(frontend, winner);
        }
        if claims.len() > 0 {
            self.losers.insert(frontend, claims.collect());
        }
    }
}
