//! The dataplane without IPVS: relays connections in this process.
//!
//! ```text
//!  Op ─▶ Server { pool, listening } ─▶ relay ─▶ endpoints
//!          ▲
//!  plan ───┘ admission: source ranges, endpoints for clients inside the cluster
//! ```
//!
//! A virtual server with an address is a [`EndpointPool`] and a listening frontend. One with a firewall mark is a pool
//! only: it serves the clients inside the cluster at the frontends whose admission names the mark.
//! Nothing outlives the process, so each start creates everything again.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use schedulers::{Family, Flags, Options, Thresholds};

use super::linux::AddressTable;
use super::{Dataplane, Failure, Outcome, Portion};
use crate::conntrack::{Stale, Swept};
use crate::frontend::Frontend;
use crate::model::Protocol;
use crate::nftables;
use crate::observed::{Connections, CountedServer, LocalAddresses, Observed, ObservedServer};
use crate::op::Op;
use crate::plan::{Admission, Changed, Desired, Machine};
use crate::relay::{
    EndpointPool, InsideClients, Listening, PoolConfig, Relay, RelayLimits, Route, Transport,
};

/// The dataplane of a process that relays itself.
#[derive(Debug)]
pub(crate) struct Userspace {
    relay: Relay,
    machine: AddressTable,
    /// Whether the process may make addresses local.
    is_privileged: bool,
    inside: Arc<InsideClients>,
    state: Observed,
    servers: BTreeMap<ipvs::ServiceKey, Server>,
    /// The admissions of the plan, by the key of the frontend's virtual server.
    admissions: BTreeMap<ipvs::ServiceKey, Admission>,
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
    pub(crate) fn start(limits: RelayLimits, inside: InsideClients) -> Result<Self, Failure> {
        let relay = Relay::start(limits).map_err(|error| failure(&error, "starting the relay"))?;
        Ok(Self {
            relay,
            machine: AddressTable::open()?,
            is_privileged: has_net_admin(),
            inside: Arc::new(inside),
            state: Observed::default(),
            servers: BTreeMap::new(),
            admissions: BTreeMap::new(),
        })
    }

    /// Returns the netlink port of our changes of addresses, which notifications carry.
    pub(crate) fn addresses_port(&self) -> u32 {
        self.machine.port()
    }

    /// Closes all frontends and waits until the connections have ended, for at most `patience`.
    pub(crate) fn stop(self, patience: Duration) {
        self.relay.stop(patience);
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
                self.admissions.remove(&key);
                server.pool.clear();
                if let Some(listening) = server.listening {
                    self.relay.close(listening);
                }
                self.relay.cut();
                Ok(())
            }
            Op::AddDestination(key, destination) => {
                let pool = &self.server(&key, op)?.pool;
                let address = socket(&destination.key);
                let added = pool.add(address, destination.weight, thresholds(&destination));
                added.map_err(|error| refused(&error, op))
            }
            Op::SetDestination(key, destination) => {
                let pool = &self.server(&key, op)?.pool;
                let address = socket(&destination.key);
                let set = pool.set(address, destination.weight, thresholds(&destination));
                set.map_err(|error| refused(&error, op))
            }
            Op::DeleteDestination(key, destination) => {
                if !self.server(&key, op)?.pool.remove(socket(&destination)) {
                    return Err(Failure::kernel(Errno::NOENT, op));
                }
                self.relay.cut();
                Ok(())
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
        let pool = EndpointPool::new(&pool_config(&service), self.relay.now());
        let pool = Arc::new(pool.map_err(|error| refused(&error, op))?);
        let listening = match Frontend::of(&service.key) {
            Some(frontend) => {
                let transport = transport(frontend.protocol)
                    .ok_or_else(|| Failure::kernel(Errno::PROTONOSUPPORT, op))?;
                let route = self.route(&service.key, &pool);
                let opened = self.relay.open(transport, frontend.socket(), route);
                Some(opened.map_err(|error| failure(&error, op))?)
            }
            None => None,
        };
        self.servers.insert(service.key, Server { pool, listening });
        Ok(())
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
            return self.machine.apply(op);
        }
        let is_needed = !matches!(op, Op::DeleteAddress(_));
        if is_needed && !self.machine.read_machine()?.has(&address) {
            return Err(Failure {
                errno: Some(Errno::ADDRNOTAVAIL),
                message: format!("{op}: only a process with CAP_NET_ADMIN can make it local"),
            });
        }
        Ok(())
    }

    /// Returns who may connect to a frontend, and to which endpoints.
    fn route(&self, key: &ipvs::ServiceKey, pool: &Arc<EndpointPool>) -> Route {
        let admission = self.admissions.get(key);
        let mark = admission.and_then(|admission| admission.inside_mark);
        let family = key.family();
        let inside =
            mark.and_then(|mark| self.servers.get(&ipvs::ServiceKey::Mark { family, mark }));
        Route {
            pool: pool.clone(),
            inside: inside.map(|server| (self.inside.clone(), server.pool.clone())),
            sources: admission.and_then(|admission| admission.source_ranges.clone()),
        }
    }

    /// Updates the route of a frontend, and whether it listens.
    fn update(&mut self, key: &ipvs::ServiceKey) -> std::io::Result<()> {
        let Some(server) = self.servers.get(key) else {
            return Ok(());
        };
        let route = self.route(key, &server.pool);
        match self
            .servers
            .get_mut(key)
            .and_then(|server| server.listening.as_mut())
        {
            Some(listening) => self.relay.set_route(listening, route),
            None => Ok(()),
        }
    }

    /// Returns the frontends that use the virtual server `key`: itself, or those with its firewall mark.
    fn users(&self, key: &ipvs::ServiceKey) -> Vec<ipvs::ServiceKey> {
        let ipvs::ServiceKey::Mark { mark, .. } = *key else {
            return vec![*key];
        };
        let users = self.admissions.iter();
        let users = users.filter(|(_, admission)| admission.inside_mark == Some(mark));
        users.map(|(user, _)| *user).collect()
    }

    fn counted(&self, server: &ObservedServer) -> CountedServer {
        let pool = self
            .servers
            .get(&server.service.key)
            .map(|server| &server.pool);
        let count = |destination: &ipvs::Destination| {
            let counts = pool.map(|pool| pool.counts(socket(&destination.key)));
            let counts = counts.unwrap_or_default();
            Connections {
                active: counts.active,
                inactive: counts.inactive,
            }
        };
        CountedServer {
            server: server.clone(),
            connections: server.destinations.iter().map(count).collect(),
        }
    }
}

impl Dataplane for Userspace {
    fn machine(&mut self) -> Result<Machine, Failure> {
        let machine = self.machine.read_machine()?;
        self.inside.set_own(machine.addresses.clone());
        Ok(Machine {
            // The relay could not keep SCTP's associations of several addresses.
            unsupported: [Protocol::Sctp].into(),
            ..machine
        })
    }

    fn shows_virtual_servers(
        &mut self,
        expected: &BTreeMap<ipvs::ServiceKey, ObservedServer>,
        _: Portion,
    ) -> bool {
        *expected == self.state.virtual_servers
    }

    fn virtual_servers(&mut self, each: &mut dyn FnMut(CountedServer)) -> Result<(), Failure> {
        for server in self.state.virtual_servers.values() {
            each(self.counted(server));
        }
        Ok(())
    }

    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure> {
        let server = self.state.virtual_servers.get(key);
        Ok(server.map(|server| self.counted(server)))
    }

    fn addresses(&mut self) -> Result<LocalAddresses, Failure> {
        Ok(LocalAddresses {
            addresses: self.state.addresses.clone(),
            ..LocalAddresses::default()
        })
    }

    fn admit(&mut self, desired: &Desired, changed: &Changed) {
        for key in &changed.virtual_servers {
            match desired.admission(key) {
                Some(admission) => drop(self.admissions.insert(*key, admission)),
                // The restrictions of a removed frontend hold until its virtual server is deleted.
                None => continue,
            }
            // Only opening a listener can fail, and the frontend of an Op is updated again after it.
            let _ = self.update(key);
        }
    }

    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(ops.len());
        for op in ops {
            let mut outcome = self.execute(op);
            if outcome.is_ok() {
                self.state.record(op);
                if let Some(key) = op.service_key() {
                    let users = self.users(&key);
                    let updated = users.into_iter().try_for_each(|user| self.update(&user));
                    outcome = updated.map_err(|error| failure(&error, op));
                }
            }
            outcomes.push(outcome.map_err(Box::new));
        }
        outcomes
    }

    fn has_scheduler(&mut self, name: ipvs::SchedulerName) -> Result<Option<bool>, Failure> {
        let known = schedulers::Registry::kernel();
        Ok(Some(known.names().any(|known| known == name.as_str())))
    }

    // A process that filters connections itself has no packet rules and no flows in the kernel.

    fn rules_generation(&mut self) -> Result<Option<u32>, Failure> {
        Ok(None)
    }

    fn change_rules(
        &mut self,
        _: &nftables::Table,
        _: &[nftables::Command],
    ) -> Result<Option<u32>, Failure> {
        Ok(None)
    }

    fn replace_rules(&mut self, _: &nftables::Table) -> Result<Option<u32>, Failure> {
        Ok(None)
    }

    fn delete_rules(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn sweep_flows(&mut self, _: &Stale) -> Result<Swept, Failure> {
        Ok(Swept::default())
    }
}

/// Returns whether this thread has CAP_NET_ADMIN.
fn has_net_admin() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}

fn pool_config(service: &ipvs::Service) -> PoolConfig {
    let has = |flag| service.flags.contains(flag);
    let scheduler = service
        .scheduler
        .as_ref()
        .map_or("rr", ipvs::SchedulerName::as_str);
    let is_persistent = has(ipvs::ServiceFlags::PERSISTENT);
    PoolConfig {
        scheduler: scheduler.to_owned(),
        options: Options {
            family: match service.key.family() {
                ipvs::Family::V4 => Family::V4,
                ipvs::Family::V6 => Family::V6,
            },
            flags: Flags {
                fallback: has(ipvs::ServiceFlags::SCHED1),
                port: has(ipvs::ServiceFlags::SCHED2),
            },
            ..Options::default()
        },
        affinity: is_persistent.then(|| Duration::from_secs(service.timeout_secs.into())),
    }
}

fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    }
}

fn thresholds(destination: &ipvs::Destination) -> Thresholds {
    let thresholds = Thresholds::new(destination.upper_threshold, destination.lower_threshold);
    // The kernel refuses a lower threshold above the upper one; no plan has one.
    thresholds.unwrap_or_default()
}

fn socket(key: &ipvs::DestinationKey) -> SocketAddr {
    (key.address, key.port).into()
}

fn failure(error: &std::io::Error, doing: impl std::fmt::Display) -> Failure {
    Failure {
        errno: Errno::from_io_error(error),
        message: format!("{doing}: {error}"),
    }
}

/// The failure of a change that a pool refuses, with the error number that IPVS would return.
fn refused(error: &crate::relay::PoolError, op: &Op) -> Failure {
    Failure {
        errno: Some(error.errno()),
        message: format!("{op}: {error}"),
    }
}
