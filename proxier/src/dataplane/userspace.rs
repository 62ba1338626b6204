//! The dataplane without IPVS: relays connections in this process.
//!
//! ```text
//!  Op ─▶ Server { pool, listening } ─▶ relay ─▶ endpoints
//!          ▲
//!  plan ───┘ admission: source ranges, endpoints for clients inside the cluster
//! ```
//!
//! A virtual server with an address is an [`EndpointPool`] and a listening frontend. One with a firewall mark
//! is a pool only: it serves the clients inside the cluster at the frontends whose admission names the mark.
//! Only the routes that make addresses local outlive the process. Each start creates everything else again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use rapidhash::RapidHashSet;
use relay::{
    AffinityRoom, EndpointPool, Handling, InsideClients, Listening, Relay, RelayLimits, Route,
    kernel_schedulers,
};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use schedulers::Registry;

use super::answer_path::AnswerPath;
use super::ipvs::Kernel;
use super::ipvs::Wanted;
use super::ipvs::linux::AddressTable;
use super::{Failure, Outcome};
use crate::cluster::model::Protocol;
use crate::cluster::problem::Problem;
use crate::dataplane::ipvs::marks::MarkKey;
use crate::dataplane::ipvs::observed::{
    Connections, CountedServer, LocalAddresses, Observed, ObservedServer,
};
use crate::dataplane::ipvs::op::Op;
use crate::host::namespace_lock::NamespaceLock;
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Changed, Machine, RelayAbilities};

mod circles;
mod client_sources;
mod convert;
mod terms;

use circles::LeftOut;
use client_sources::ClientSources;
use convert::{handling, pool_config, socket, transport};
use terms::{AllTerms, Terms};

/// The dataplane of a process that relays itself.
#[derive(Debug)]
pub struct Userspace {
    relay: Relay,
    machine: AddressTable,
    /// Whether the process may make addresses local.
    is_privileged: bool,
    /// Held from the first such address to the end.
    namespace: Option<NamespaceLock>,
    inside: Arc<InsideClients>,
    schedulers: Arc<Registry>,
    affinity: Arc<AffinityRoom>,
    state: Observed,
    servers: BTreeMap<ipvs::ServiceKey, Server>,
    terms: AllTerms,
    left_out: LeftOut,
    client_sources: ClientSources,
    /// Whether the log says that few more frontends can be opened.
    is_nearly_full: bool,
}

/// The relay's part of a virtual server.
#[derive(Debug)]
struct Server {
    pool: Arc<EndpointPool>,
    /// `None` for a firewall mark.
    listening: Option<Listening>,
}

impl Userspace {
    /// Starts the relay. Clients in the networks of `inside`, and processes of this node, are inside the
    /// cluster.
    ///
    /// # Errors
    /// If threads or sockets cannot be created.
    pub fn start(limits: RelayLimits, inside: InsideClients) -> Result<Self, Failure> {
        let relay =
            Relay::start(limits).map_err(|error| io_failure(&error, "starting the relay"))?;
        let is_privileged = has_net_admin();
        // A kernel without nfnetlink refuses the socket. Then endpoints see this node's address,
        // and all else works.
        let answers = is_privileged.then(AnswerPath::open).transpose();
        Ok(Self {
            relay,
            machine: AddressTable::open(&[])?,
            is_privileged,
            namespace: None,
            inside: Arc::new(inside),
            schedulers: kernel_schedulers(),
            affinity: Arc::default(),
            state: Observed::default(),
            servers: BTreeMap::new(),
            terms: AllTerms::default(),
            left_out: LeftOut::default(),
            client_sources: ClientSources::new(answers.unwrap_or_default()),
            is_nearly_full: false,
        })
    }

    /// Makes Services choose among the schedulers of `registry` instead of the kernel's.
    pub fn choosing(self, registry: Registry) -> Self {
        Self {
            schedulers: Arc::new(registry),
            ..self
        }
    }

    /// Returns the netlink port of our changes of addresses, which notifications carry.
    pub(crate) fn addresses_port(&self) -> u32 {
        self.machine.port()
    }

    /// Closes all frontends and waits until the connections have ended, for at most `patience`.
    pub fn stop(mut self, patience: Duration) {
        // In this order: connections need the way of answers until they end.
        self.relay.stop(patience);
        self.client_sources.remove();
    }

    fn execute(&mut self, op: &Op) -> Result<(), Failure> {
        match *op {
            Op::AddService(service) => self.add_service(service, op),
            Op::SetService(service) => {
                let config = pool_config(&service);
                let now = self.relay.now();
                let server = self.server(&service.key, op)?;
                server
                    .pool
                    .configure(&config, now)
                    .map_err(|error| refused(&error, op))
            }
            Op::DeleteService(key) => {
                let server = self.servers.remove(&key);
                let server = server.ok_or_else(|| Failure::kernel(Errno::SRCH, op))?;
                self.terms.remove(&key);
                self.left_out.forget(&key);
                // `Relay::close` keeps connections, as for a frontend without usable endpoints. The
                // removal of their endpoints ends them.
                server.pool.clear();
                if let Some(listening) = server.listening {
                    self.relay.close(listening);
                }
                self.relay.cut();
                Ok(())
            }
            Op::AddDestination(key, destination) => self.add_destination(&key, &destination, op),
            Op::SetDestination(key, destination) => self.set_destination(&key, &destination, op),
            Op::DeleteDestination(key, destination) => {
                self.delete_destination(&key, &destination, op)
            }
            Op::AddAddress(address, _)
            | Op::SetAddress(address, _)
            | Op::DeleteAddress(address) => self.change_address(address, op),
            // This dataplane has routes on lo only, so no plan has these Ops.
            Op::DeleteLeftover(..) | Op::AddCarrier | Op::SetCarrier | Op::DeleteCarrier => Ok(()),
        }
    }

    fn add_service(&mut self, service: ipvs::Service, op: &Op) -> Result<(), Failure> {
        if self.servers.contains_key(&service.key) {
            return Err(Failure::kernel(Errno::EXIST, op));
        }
        let (registry, now) = (self.schedulers.clone(), self.relay.now());
        let room = self.affinity.clone();
        let pool = EndpointPool::sharing(room, registry, &pool_config(&service), now);
        let pool = Arc::new(pool.map_err(|error| refused(&error, op))?);
        let listening = match Frontend::of(&service.key) {
            Some(frontend) => {
                let transport = transport(frontend.protocol)
                    .ok_or_else(|| Failure::kernel(Errno::PROTONOSUPPORT, op))?;
                // `admit` has set the terms of the frontend. If they name a mark whose pool is not
                // added yet, `apply` updates the route when it is.
                let route = self.route(&service.key, &pool);
                let opened = self.relay.open(transport, frontend.socket(), route);
                let opened = opened.map_err(|error| failure(Some(error.errno()), error, op))?;
                self.announce_limit();
                Some(opened)
            }
            None => None,
        };
        self.servers.insert(service.key, Server { pool, listening });
        Ok(())
    }

    /// Logs once that few more frontends can be opened.
    fn announce_limit(&mut self) {
        let (left, all) = self.relay.room();
        let is_nearly_full = left < all / 5;
        if is_nearly_full && !self.is_nearly_full {
            tracing::warn!(
                "{} frontends listen, and only {left} more can: each needs a file per worker, and the process \
                 may open {} files; raise the limit (ulimit -Hn, LimitNOFILE=) or lower --userspace-workers",
                all - left,
                self.relay.file_limit()
            );
        }
        // Announced again only after a fifth of all became free.
        self.is_nearly_full = is_nearly_full || (self.is_nearly_full && left < all / 5 * 2);
    }

    fn server(&self, key: &ipvs::ServiceKey, op: &Op) -> Result<&Server, Failure> {
        let server = self.servers.get(key);
        server.ok_or_else(|| Failure::kernel(Errno::SRCH, op))
    }

    /// Makes an address local, or no longer.
    ///
    /// Loopback addresses are always local. Without privileges, other addresses can only be used if the
    /// machine has them.
    fn change_address(&mut self, address: IpAddr, op: &Op) -> Result<(), Failure> {
        if address.is_loopback() {
            return Ok(());
        }
        if self.is_privileged {
            // Only now, because relays that serve loopback addresses do not disturb each other.
            if self.namespace.is_none() {
                let acquired = NamespaceLock::acquire();
                let acquired = acquired.map_err(|held| failure(Some(Errno::BUSY), held, op));
                self.namespace = Some(acquired?);
            }
            return self.machine.apply(op);
        }
        let is_needed = !matches!(op, Op::DeleteAddress(_));
        if is_needed && !self.machine.read_machine()?.has(&address) {
            let error = "only a process with CAP_NET_ADMIN can make it local";
            return Err(failure(Some(Errno::ADDRNOTAVAIL), error, op));
        }
        Ok(())
    }

    /// Returns who may connect to a frontend, and to which endpoints.
    fn route(&self, key: &ipvs::ServiceKey, pool: &Arc<EndpointPool>) -> Route {
        let terms = self.terms.get(key);
        let mark = terms.and_then(|terms| terms.inside);
        let inside = mark.and_then(|mark| self.servers.get(&mark));
        Route {
            pool: pool.clone(),
            inside: inside.map(|server| (self.inside.clone(), server.pool.clone())),
            sources: terms.and_then(|terms| terms.sources.clone()),
            client_sources: terms.and_then(|terms| self.client_sources.of(&terms.options)),
            handling: terms.map_or_else(Handling::default, |terms| handling(&terms.options)),
        }
    }

    /// Updates the route of a frontend, and whether it listens.
    fn update(&mut self, key: &ipvs::ServiceKey) -> std::io::Result<()> {
        let Some(server) = self.servers.get(key) else {
            return Ok(());
        };
        let route = self.route(key, &server.pool);
        let server = self.servers.get_mut(key);
        match server.and_then(|server| server.listening.as_mut()) {
            Some(listening) => self.relay.set_route(listening, route),
            None => Ok(()),
        }
    }

    fn counted(&self, key: &ipvs::ServiceKey, server: &ObservedServer) -> CountedServer {
        let pool = self.servers.get(key).map(|server| &server.pool);
        let count = |destination: ipvs::Destination| {
            let counts = pool.map(|pool| pool.counts(socket(&destination.key)));
            let counts = counts.unwrap_or_default();
            Connections {
                active: counts.active,
                inactive: counts.inactive,
            }
        };
        CountedServer {
            key: *key,
            server: server.clone(),
            connections: server.destinations.iter().map(count).collect(),
        }
    }
}

impl Kernel for Userspace {
    fn machine(&mut self) -> Result<Machine, Failure> {
        let machine = self.machine.read_machine()?;
        self.inside.set_own(machine.addresses.clone());
        // At each resync, for pools that get no new clients.
        let (pools, now) = (self.servers.values(), self.relay.now());
        pools.for_each(|server| server.pool.forget_clients(now));
        Ok(machine)
    }

    fn capabilities(&mut self, machine: &Machine) -> Capabilities {
        Capabilities {
            // The relay could not keep SCTP's associations of several addresses.
            unsupported: [Protocol::Sctp].into(),
            relay: Some(RelayAbilities {
                keeps_sources: self.client_sources.check(machine),
            }),
            has_full_affinity: true,
            ..Capabilities::default()
        }
    }

    fn draw_mark_key(&mut self) -> Result<MarkKey, Failure> {
        // No packet has a mark of the relay, so any key will do.
        Ok(MarkKey::default())
    }

    fn virtual_servers(
        &mut self,
        _: &mut dyn Iterator<Item = ipvs::ServiceKey>,
        each: &mut dyn FnMut(CountedServer),
    ) -> Result<(), Failure> {
        for (key, server) in self.state.virtual_servers.iter() {
            each(self.counted(&key, server));
        }
        Ok(())
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        let server = self.state.virtual_servers.get(key);
        Ok(server.map(|server| self.counted(key, server)))
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        let mut addresses = self.state.addresses.clone();
        if self.is_privileged {
            // Other programs can delete our routes, and an earlier process may have left some.
            addresses.retain(IpAddr::is_loopback);
            addresses.extend(self.machine.read_routes()?.into_entries());
        }
        Ok(LocalAddresses {
            addresses,
            ..LocalAddresses::default()
        })
    }

    fn serves_alone(&self) -> bool {
        false
    }

    fn problems(&self, wanted: Wanted<'_>) -> Vec<Problem> {
        self.circles(wanted)
    }

    fn problems_revision(&self) -> u64 {
        self.left_out.revision
    }

    fn admit(&mut self, wanted: Wanted<'_>, changed: &Changed) {
        let desired = wanted.desired();
        self.client_sources.follow(desired, changed);
        self.left_out.note(&changed.frontends);
        for frontend in &changed.frontends {
            let Some(plan) = desired.frontends.get(frontend) else {
                // The restrictions of a removed frontend hold until its virtual server is deleted.
                continue;
            };
            let key = (*frontend).into();
            let terms = Terms {
                sources: plan.profile.access.source_ranges.clone(),
                inside: wanted.inside(frontend),
                options: plan.profile.relay,
            };
            self.terms.set(key, terms);
            // Only opening a listener can fail, and the frontend of an Op is updated again after it.
            let _ = self.update(&key);
        }
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(ops.len());
        let mut frontends = RapidHashSet::default();
        for op in ops {
            let mut outcome = self.execute(op);
            if outcome.is_ok() {
                if let Op::AddService(ipvs::Service { key, .. }) | Op::DeleteService(key) = op {
                    frontends.extend(Frontend::of(key));
                }
                // Recorded even if the update below fails: the pool itself has changed.
                self.state.record(op);
                if let Some(key) = op.service_key() {
                    // A new or deleted pool changes the routes that lead to it.
                    let users = self.terms.users(&key);
                    let updated = users.into_iter().try_for_each(|user| self.update(&user));
                    outcome = updated.map_err(|error| io_failure(&error, op));
                }
            }
            outcomes.push(outcome.map_err(Box::new));
        }
        self.follow_frontends(&frontends);
        outcomes
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        let mut known = self.schedulers.names();
        Ok(Some(known.any(|known| known == name.as_str())))
    }
}

/// Returns whether this thread has CAP_NET_ADMIN.
fn has_net_admin() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

/// Returns the failure of `doing`. A pool and a listener refuse with the error numbers of IPVS and of the kernel.
fn failure(
    errno: Option<Errno>,
    error: impl std::fmt::Display,
    doing: impl std::fmt::Display,
) -> Failure {
    Failure {
        errno,
        message: format!("{doing}: {error}"),
    }
}

fn io_failure(error: &std::io::Error, doing: impl std::fmt::Display) -> Failure {
    failure(Errno::from_io_error(error), error, doing)
}

fn refused(error: &relay::PoolError, op: &Op) -> Failure {
    failure(Some(error.errno()), error, op)
}
