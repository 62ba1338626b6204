//! Planning with a memory: only what was touched is planned again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::context::Context;
use super::health::{HealthCheck, HealthPorts};
use super::service::{Asked, ask};
use super::{Desired, FrontendKind, Machine, PlanConfig, VirtualServer};
use crate::model::{ObjectName, Service};
use crate::packed::pack;
use crate::problem::Problem;
use crate::store::{Snapshot, Touched};

/// The plan of a node, kept up to date.
///
/// # Invariant
/// After any sequence of updates the plan equals [`super::desired`] of the last input: a Service's
/// plan depends on nothing but its own objects and the node, and a contested frontend is
/// decided among all who claim it.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlanConfig,
    machine: Machine,
    desired: Desired,
    footprints: BTreeMap<ObjectName, Footprint>,
    /// The Services whose footprints have problems.
    faulty: BTreeSet<ObjectName>,
    /// Virtual servers whose frontend another Service has.
    losers: BTreeMap<ipvs::ServiceKey, Vec<VirtualServer>>,
    /// How many Services want each address local.
    address_users: Users,
    /// How many Services have an endpoint on this node of each address.
    local_endpoint_users: Users,
    health_ports: HealthPorts,
    /// Problems that are no Service's.
    common_problems: Vec<Problem>,
}

/// What one Service left in the plan.
#[derive(Clone, Debug)]
struct Footprint {
    keys: Box<[ipvs::ServiceKey]>,
    addresses: Box<[IpAddr]>,
    local_endpoints: Box<[IpAddr]>,
    health_port: Option<u16>,
    problems: Box<[Problem]>,
}

/// What an update changed in the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Virtual servers that came, went or differ.
    pub virtual_servers: BTreeSet<ipvs::ServiceKey>,
    /// Addresses that came, went or have another source.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses of endpoints that came to this node or went.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// Ports whose health check came, went or has another answer.
    pub health_checks: BTreeSet<u16>,
}

impl Changed {
    /// Adds what `other` names.
    pub fn extend(&mut self, other: &Self) {
        let keys = &other.virtual_servers;
        self.virtual_servers.extend(keys.iter().copied());
        self.addresses.extend(other.addresses.iter().copied());
        let endpoints = &other.local_endpoints;
        self.local_endpoints.extend(endpoints.iter().copied());
        self.health_checks
            .extend(other.health_checks.iter().copied());
    }
}

impl Planner {
    /// A planner that has planned nothing yet.
    pub fn new(config: PlanConfig) -> Self {
        Self {
            config,
            machine: Machine::default(),
            desired: Desired::default(),
            footprints: BTreeMap::new(),
            faulty: BTreeSet::new(),
            losers: BTreeMap::new(),
            address_users: Users::default(),
            local_endpoint_users: Users::default(),
            health_ports: HealthPorts::default(),
            common_problems: Vec::new(),
        }
    }

    /// Plans the touched Services again, or all when the machine is not what it was.
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
                let all = snapshot.services().map(|service| &service.name);
                all.chain(self.footprints.keys()).cloned().collect()
            }
        };
        if names.is_empty() && !is_all {
            return Changed::default();
        }
        // Out of self while the rest of it is changed; not cloned, it may be large.
        let machine = std::mem::take(&mut self.machine);
        let config = self.config.clone();
        let context = Context::new(snapshot, &machine, &config);
        let changed = self.plan(&names, &context);
        if is_all {
            self.common_problems = context.problems();
            pack(&mut self.desired.virtual_servers);
            pack(&mut self.desired.addresses);
            pack(&mut self.footprints);
            pack(&mut self.address_users.0);
        }
        drop(context);
        self.machine = machine;
        changed
    }

    /// What the operator chose.
    pub fn config(&self) -> &PlanConfig {
        &self.config
    }

    /// What should be.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// What should be, for those who need no update any more.
    pub fn into_desired(self) -> Desired {
        self.desired
    }

    /// What of the input was worked around, sorted.
    ///
    /// # Cost
    /// Proportional to the problems, and to the health-check node ports.
    pub fn problems(&self, snapshot: &Snapshot) -> Vec<Problem> {
        let faulty = self.faulty.iter();
        let footprints = faulty.filter_map(|name| self.footprints.get(name));
        let of_services = footprints.flat_map(|left| &left.problems);
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

    fn plan(&mut self, names: &BTreeSet<ObjectName>, context: &Context<'_>) -> Changed {
        let mut before = Before::default();
        for name in names {
            self.withdraw(name, &mut before);
        }
        for name in names {
            if let Some(service) = context.snapshot.service(name) {
                self.claim(service, ask(service, context), context, &mut before);
            }
        }
        for &key in before.virtual_servers.keys() {
            self.decide(key, context.snapshot);
        }
        for &port in before.health_checks.keys() {
            let checks = &mut self.desired.health_checks;
            match self.health_ports.winner(port, context.snapshot) {
                Some(winner) => checks.insert(port, winner.clone()),
                None => checks.remove(&port),
            };
        }
        before.compare(&mut self.desired)
    }

    /// Takes out what `name` asked for.
    fn withdraw(&mut self, name: &ObjectName, before: &mut Before) {
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
            before.virtual_servers.entry(key).or_insert(removed);
        }
        if let Some(port) = footprint.health_port {
            let check = || self.desired.health_checks.get(&port).cloned();
            before.health_checks.entry(port).or_insert_with(check);
            self.health_ports.withdraw(port, name);
        }
        for address in footprint.addresses {
            if self.address_users.remove(address) {
                let removed = self.desired.addresses.remove(&address);
                before.addresses.entry(address).or_insert(removed);
            }
        }
        for address in footprint.local_endpoints {
            if self.local_endpoint_users.remove(address) {
                let removed = self.desired.local_endpoints.remove(&address);
                before.local_endpoints.entry(address).or_insert(removed);
            }
        }
    }

    /// Puts in what `service` asks for; who gets a contested frontend is decided later.
    fn claim(
        &mut self,
        service: &Service,
        asked: Asked,
        context: &Context<'_>,
        before: &mut Before,
    ) {
        let mut keys = Vec::with_capacity(asked.servers.len());
        for server in asked.servers {
            let key = server.service.key;
            let winner = || self.desired.virtual_servers.get(&key).cloned();
            before.virtual_servers.entry(key).or_insert_with(winner);
            keys.push(key);
            // Nearly always nobody else claims it.
            match self.desired.virtual_servers.entry(key) {
                Entry::Vacant(free) => {
                    free.insert(server);
                }
                Entry::Occupied(_) => self.losers.entry(key).or_default().push(server),
            }
        }
        for &address in &asked.addresses {
            let source = context.source(address);
            self.address_users.add(address);
            let old = self.desired.addresses.insert(address, source);
            before.addresses.entry(address).or_insert(old);
        }
        for &address in &asked.local_endpoints {
            self.local_endpoint_users.add(address);
            let was_known = !self.desired.local_endpoints.insert(address);
            before.local_endpoints.entry(address).or_insert(was_known);
        }
        let health_port = asked.health_check.as_ref().map(|&(port, _)| port);
        if let Some((port, check)) = asked.health_check {
            let known = || self.desired.health_checks.get(&port).cloned();
            before.health_checks.entry(port).or_insert_with(known);
            self.health_ports.claim(port, check);
        }
        if !asked.problems.is_empty() {
            self.faulty.insert(service.name.clone());
        }
        let footprint = Footprint {
            keys: keys.into(),
            addresses: asked.addresses.into(),
            local_endpoints: asked.local_endpoints.into_iter().collect(),
            health_port,
            problems: asked.problems.into(),
        };
        self.footprints.insert(service.name.clone(), footprint);
    }

    /// Gives a frontend to the first of those who claim it.
    fn decide(&mut self, key: ipvs::ServiceKey, snapshot: &Snapshot) {
        let Some(mut claims) = self.losers.remove(&key) else {
            return;
        };
        claims.extend(self.desired.virtual_servers.remove(&key));
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

/// How many Services use each address.
#[derive(Clone, Debug, Default)]
struct Users(BTreeMap<IpAddr, u32>);

impl Users {
    fn add(&mut self, address: IpAddr) {
        *self.0.entry(address).or_default() += 1;
    }

    /// Answers whether that was the last one.
    fn remove(&mut self, address: IpAddr) -> bool {
        let Entry::Occupied(mut users) = self.0.entry(address) else {
            return false;
        };
        *users.get_mut() -= 1;
        let is_last = *users.get() == 0;
        if is_last {
            users.remove();
        }
        is_last
    }
}

/// What the touched parts of the plan were before an update.
#[derive(Default)]
struct Before {
    virtual_servers: BTreeMap<ipvs::ServiceKey, Option<VirtualServer>>,
    addresses: BTreeMap<IpAddr, Option<Option<IpAddr>>>,
    local_endpoints: BTreeMap<IpAddr, bool>,
    health_checks: BTreeMap<u16, Option<HealthCheck>>,
}

impl Before {
    /// What is not what it was. A virtual server that is what it was becomes the old one again:
    /// its destinations may be shared.
    fn compare(self, after: &mut Desired) -> Changed {
        let mut virtual_servers = BTreeSet::new();
        for (key, before) in self.virtual_servers {
            match (before, after.virtual_servers.get_mut(&key)) {
                (Some(before), Some(now)) if before == *now => *now = before,
                (None, None) => {}
                _ => {
                    virtual_servers.insert(key);
                }
            }
        }
        let addresses = self.addresses.into_iter();
        Changed {
            virtual_servers,
            addresses: addresses
                .filter(|(address, before)| before.as_ref() != after.addresses.get(address))
                .map(|(address, _)| address)
                .collect(),
            local_endpoints: (self.local_endpoints.into_iter())
                .filter(|(address, before)| *before != after.local_endpoints.contains(address))
                .map(|(address, _)| address)
                .collect(),
            health_checks: (self.health_checks.into_iter())
                .filter(|(port, before)| before.as_ref() != after.health_checks.get(port))
                .map(|(port, _)| port)
                .collect(),
        }
    }
}

/// The order in which claims to one frontend are served.
///
/// Cluster IPs first; then the older Service.
fn precedence<'a>(
    server: &'a VirtualServer,
    snapshot: &'a Snapshot,
) -> (FrontendKind, (bool, Option<&'a str>, &'a ObjectName)) {
    // The two kinds of external address are equals.
    let kind = match server.kind {
        FrontendKind::LoadBalancer => FrontendKind::ExternalIp,
        other => other,
    };
    (kind, age(&server.owner.service, snapshot))
}

/// What orders Services by age, the oldest first, so that a newcomer can never take anything away
/// from a running one; undated objects come last.
pub(super) fn age<'a>(
    name: &'a ObjectName,
    snapshot: &'a Snapshot,
) -> (bool, Option<&'a str>, &'a ObjectName) {
    let service = snapshot.service(name);
    let created = service.and_then(|service| service.created.as_deref());
    (created.is_none(), created, name)
}

fn conflict(key: ipvs::ServiceKey, loser: &VirtualServer, winner: &VirtualServer) -> Problem {
    Problem::new(
        format_args!("Service {}", loser.owner.service),
        loser.kind.field(),
        key,
        format!(
            "already served for Service {}; skipped",
            winner.owner.service
        ),
    )
}
