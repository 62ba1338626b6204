//! A virtual server in the kernel, with a record of every change and every pick.
//!
//! The connection counts are read after every pick. If other counts changed as well, for example by a
//! timer, the order of the change and the pick is unknown: that is an error, and the scenario is dropped.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipvs_netlink::{
    Change, Client, Destination, DestinationEntry, DestinationKey, ServiceKey, Timeouts,
};

use crate::kernel::connection::Connection;
use crate::kernel::load::Load;
use crate::kernel::now;
use crate::kernel::play::CLOCK_DOUBT_MS;
use crate::kernel::setup::{DAY_SECS, MARK, Setup, Traffic};
use crate::kernel::sockets::{self, Sockets};
use crate::trace::{Connections, Event, Flavour, Limits, Name, Pick, Scenario};

/// Timeouts that are longer than every scenario.
pub(crate) const LONG: Timeouts = Timeouts {
    tcp_secs: 7200,
    tcp_fin_secs: 7200,
    udp_secs: 7200,
};

/// The kernel repeats a SYN a second after it (`TCP_TIMEOUT_INIT` in `include/net/tcp.h`).
const SYN_REPEATED_AFTER: Duration = Duration::from_millis(900);

/// A server, listed or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// The address and port.
    pub(crate) address: SocketAddr,
    /// The weight.
    pub(crate) weight: u32,
    /// The connection thresholds.
    pub(crate) limits: Limits,
    /// The connection counts and the overload mark, which the schedulers read.
    pub(crate) load: Load,
    /// Whether the virtual server has the server now.
    pub(crate) is_listed: bool,
}

/// A virtual server and its record.
#[derive(Debug)]
pub(crate) struct Director {
    pub(in crate::kernel) ipvs: Client,
    key: ServiceKey,
    setup: Setup,
    flavour: Flavour,
    pub(in crate::kernel) sockets: Sockets,
    pub(in crate::kernel) servers: Vec<Server>,
    /// The kernel's list: newest first.
    pub(in crate::kernel) list: Vec<Name>,
    pub(in crate::kernel) tracked: Vec<Connection>,
    events: Vec<Event>,
    started: Instant,
}

impl Director {
    /// Creates a virtual server in the calling thread's network namespace, which must be new.
    pub(crate) fn new(setup: Setup, flavour: Flavour) -> Result<Self> {
        sockets::make_prefixes_local()?;
        for scheduler in ["lblc", "lblcr"] {
            let path = format!("/proc/sys/net/ipv4/vs/{scheduler}_expiration");
            std::fs::write(&path, setup.expiration_secs.to_string()).context(path)?;
        }
        let family = setup.family();
        let sockets = Sockets::open(family, setup.by_mark.then_some(MARK))?;
        let mut ipvs = Client::open()?;
        ipvs.set_timeouts(&LONG)?;
        let key = setup.key();
        let service = setup.service()?;
        ipvs.add_service(&service)
            .with_context(|| format!("scheduler {}", setup.scheduler))?;
        Ok(Self {
            ipvs,
            key,
            setup,
            flavour,
            sockets,
            servers: Vec::new(),
            list: Vec::new(),
            tracked: Vec::new(),
            events: Vec::new(),
            started: now(),
        })
    }

    /// Returns all servers that were ever introduced, by the number of their name.
    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the time since the virtual server was created.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the record.
    pub(crate) fn into_scenario(self) -> Scenario {
        Scenario {
            family: self.setup.family(),
            flags: self.setup.flags,
            expiration_secs: self.setup.expiration_secs,
            stimulus: self.setup.stimulus(),
            events: self.events,
        }
    }

    /// Gives a name to a new address. The server is not listed yet.
    pub(crate) fn introduce(&mut self, address: SocketAddr) -> Result<Name> {
        let name = Name(u16::try_from(self.servers.len())?);
        self.servers.push(Server {
            address,
            weight: 0,
            limits: Limits::default(),
            load: Load::new(self.flavour),
            is_listed: false,
        });
        Ok(name)
    }

    /// Adds a server. If it was listed before, the kernel may restore its old connection counts.
    pub(crate) fn add(&mut self, name: Name, weight: u32, limits: Limits) -> Result<()> {
        let destination = self.describe(name, weight, limits);
        self.change(Change::AddDestination(self.key, destination))?;
        self.list.insert(0, name);
        let now = self.read(name)?;
        let server = self.server(name)?;
        server.is_listed = true;
        let address = server.address;
        let before = server.load;
        // Connections that ended while the server was not listed ended before this command.
        server.load.release(now);
        server.load.write(limits);
        let is_overloaded = server.load.is_overloaded();
        if now != before.connections() {
            self.events.push(Event::Connections(name, now));
        }
        self.events.push(Event::Add(name, address, weight, limits));
        if is_overloaded || before.is_overloaded() {
            self.events.push(Event::Overload(name, is_overloaded));
        }
        Ok(())
    }

    /// Removes a server; its connections stay.
    pub(crate) fn remove(&mut self, name: Name) -> Result<()> {
        // The kernel does not show the counts of a removed server, so read them before.
        self.observe()?;
        let key = DestinationKey::from(self.server(name)?.address);
        self.change(Change::DeleteDestination(self.key, key))?;
        self.server(name)?.is_listed = false;
        self.list.retain(|listed| *listed != name);
        self.events.push(Event::Remove(name));
        Ok(())
    }

    /// Sets weight and thresholds of a server, perhaps to the same values.
    pub(crate) fn write(&mut self, name: Name, weight: u32, limits: Limits) -> Result<()> {
        self.observe()?;
        let destination = self.describe(name, weight, limits);
        self.change(Change::SetDestination(self.key, destination))?;
        let server = self.server(name)?;
        let was_overloaded = server.load.is_overloaded();
        server.load.write(limits);
        let is_overloaded = server.load.is_overloaded();
        self.events.push(Event::Write(name, weight, limits));
        if is_overloaded != was_overloaded {
            self.events.push(Event::Overload(name, is_overloaded));
        }
        Ok(())
    }

    /// Makes a new connection and returns the server that got it.
    pub(crate) fn pick(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Result<Option<Name>> {
        let tick_ms = self.setup.tick_ms;
        let at_ms = u64::try_from(self.age().as_millis())? / tick_ms * tick_ms;
        let pick = Pick {
            source,
            destination,
            at_ms,
        };
        let answer = match self.setup.traffic {
            Traffic::Tcp => self.connect(source, destination)?,
            Traffic::Udp | Traffic::OnePacket => self.send(source, destination)?,
        };
        // If the machine was suspended meanwhile, the kernel's time of the pick is later than ours.
        let took = u64::try_from(self.age().as_millis())? - at_ms;
        let is_timed = self.setup.expiration_secs < DAY_SECS;
        ensure!(
            !is_timed || took <= tick_ms + CLOCK_DOUBT_MS,
            "a pick took {took} ms"
        );
        // Other changes of counts may be before or after the pick, so none is allowed.
        let grown = self.grown()?;
        let expected = match (self.setup.traffic, answer) {
            (Traffic::OnePacket, _) | (_, None) => None,
            (_, Some(name)) => Some(name),
        };
        ensure!(
            grown.map(|(name, _)| name) == expected,
            "{source} was sent to {answer:?}, but the connections of {grown:?} grew"
        );
        self.events.push(Event::Pick(pick, answer));
        if let Some(name) = answer {
            let server = self.server(name)?;
            let before = server.load;
            match grown {
                Some((_, now)) => server.load.bind(now),
                None => {
                    let idle = before.connections();
                    server.load.bind(Connections {
                        inactive: idle.inactive + 1,
                        ..idle
                    });
                    server.load.release(idle);
                }
            }
            let load = server.load;
            self.note(name, before, load);
        }
        Ok(answer)
    }

    fn send(&mut self, source: SocketAddr, destination: SocketAddr) -> Result<Option<Name>> {
        let Some(address) = self.sockets.send(source, destination)? else {
            return Ok(None);
        };
        let name = self.name_at(address)?;
        if self.setup.traffic == Traffic::Udp {
            self.tracked.push(Connection {
                server: name,
                source,
                destination,
                link: None,
                is_open: true,
                is_closed_by_client: false,
            });
        }
        Ok(Some(name))
    }

    fn connect(&mut self, source: SocketAddr, destination: SocketAddr) -> Result<Option<Name>> {
        let sent = now();
        let connecting = self.sockets.send_syn(source, destination)?;
        if self.grown()?.is_none() {
            // Refused. Close the socket now, before the client repeats its SYN.
            drop(connecting);
            ensure!(
                sent.elapsed() < SYN_REPEATED_AFTER,
                "the client may have repeated a refused SYN"
            );
            return Ok(None);
        }
        let (link, address) = self.sockets.accept(connecting)?;
        let name = self.name_at(address)?;
        self.tracked.push(Connection {
            server: name,
            source,
            destination,
            link: Some(link),
            is_open: true,
            is_closed_by_client: false,
        });
        Ok(Some(name))
    }

    /// Waits.
    pub(crate) fn rest(&mut self, duration: Duration) -> Result<()> {
        sleep(duration);
        self.observe()
    }

    /// Reads all connection counts and records the changes. No new connections are allowed.
    pub(in crate::kernel) fn observe(&mut self) -> Result<()> {
        for (name, now) in self.changed()? {
            let server = self.server(name)?;
            let before = server.load;
            let total = |it: Connections| it.active + it.inactive;
            ensure!(
                total(now) <= total(before.connections()),
                "the kernel counts connections of {name} that the test did not make: {now:?}"
            );
            server.load.release(now);
            let load = server.load;
            self.note(name, before, load);
        }
        Ok(())
    }

    fn note(&mut self, name: Name, before: Load, now: Load) {
        if now.connections() != before.connections() {
            self.events
                .push(Event::Connections(name, now.connections()));
        }
        if now.is_overloaded() != before.is_overloaded() {
            self.events.push(Event::Overload(name, now.is_overloaded()));
        }
    }

    /// Returns the server that got one connection, and fails if any other count changed.
    fn grown(&mut self) -> Result<Option<(Name, Connections)>> {
        match self.changed()?[..] {
            [] => Ok(None),
            [(name, now)] => {
                let before = self.server(name)?.load.connections();
                let grew = |before: u32, now: u32| now.checked_sub(before);
                let steps = (
                    grew(before.active, now.active),
                    grew(before.inactive, now.inactive),
                );
                ensure!(
                    matches!(steps, (Some(1), Some(0)) | (Some(0), Some(1))),
                    "counts of {name} changed during a pick: {before:?}, {now:?}"
                );
                Ok(Some((name, now)))
            }
            ref several => bail!("several counts changed during a pick: {several:?}"),
        }
    }

    /// Returns the servers whose connection counts changed.
    fn changed(&mut self) -> Result<Vec<(Name, Connections)>> {
        let entries = self.ipvs.destinations(&self.key)?;
        ensure!(
            entries.len() == self.list.len(),
            "the kernel's list lacks servers"
        );
        let mut changed = Vec::new();
        for (entry, name) in entries.iter().zip(&self.list) {
            let server = self.servers[usize::from(name.0)];
            let key = DestinationKey::from(server.address);
            ensure!(
                entry.destination.key == key,
                "the kernel's list is in another order"
            );
            let now = connections(entry);
            if now != server.load.connections() {
                changed.push((*name, now));
            }
        }
        Ok(changed)
    }

    fn read(&mut self, name: Name) -> Result<Connections> {
        let key = DestinationKey::from(self.server(name)?.address);
        let entries = self.ipvs.destinations(&self.key)?;
        let entry = entries.iter().find(|entry| entry.destination.key == key);
        entry
            .map(connections)
            .context("the kernel's list lacks the new server")
    }

    fn describe(&mut self, name: Name, weight: u32, limits: Limits) -> Destination {
        let server = &mut self.servers[usize::from(name.0)];
        server.weight = weight;
        server.limits = limits;
        let mut destination = Destination::new(server.address.into(), weight);
        destination.upper_threshold = limits.upper;
        destination.lower_threshold = limits.lower;
        destination
    }

    fn change(&mut self, change: Change) -> Result<()> {
        for outcome in self.ipvs.apply(&[change])? {
            outcome.map_err(|error| *error)?;
        }
        Ok(())
    }

    pub(in crate::kernel) fn server(&mut self, name: Name) -> Result<&mut Server> {
        let server = self.servers.get_mut(usize::from(name.0));
        server.with_context(|| format!("no server {name}"))
    }

    fn name_at(&self, address: SocketAddr) -> Result<Name> {
        let has_address = |server: &Server| server.address == address;
        let index = self.servers.iter().position(has_address);
        let index = index.with_context(|| format!("no server has the address {address}"))?;
        Ok(Name(u16::try_from(index)?))
    }
}

fn connections(entry: &DestinationEntry) -> Connections {
    Connections {
        active: entry.active_connections,
        inactive: entry.inactive_connections,
    }
}
