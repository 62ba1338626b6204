//! One virtual server of a kernel: it is changed and asked, and everything it does is written down.
//!
//! The kernel shows the connections of its destinations whenever asked, so they are read after every
//! pick. What changed besides, by a timer for example, would leave open whether it was before or
//! after the pick: that is an error, never a guess.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipvs_netlink::{
    Change, Client, Destination, DestinationEntry, DestinationKey, ServiceKey, Timeouts,
};

use crate::kernel::doors::{self, Doors};
use crate::kernel::ledger::Load;
use crate::kernel::lives::Live;
use crate::kernel::now;
use crate::kernel::play::CLOCK_DOUBT_MS;
use crate::kernel::setup::{DAY_SECS, MARK, Setup, Traffic};
use crate::trace::{Connections, Event, Flavour, Limits, Name, Pick, Scenario};

/// As long as no scenario lasts.
pub(crate) const LONG: Timeouts = Timeouts {
    tcp_secs: 7200,
    tcp_fin_secs: 7200,
    udp_secs: 7200,
};

/// A server, whether it is in the list or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    /// Where it is.
    pub(crate) address: SocketAddr,
    /// Its weight.
    pub(crate) weight: u32,
    /// Its thresholds.
    pub(crate) limits: Limits,
    /// Its load, of which the schedulers see two numbers and a flag.
    pub(crate) load: Load,
    /// Whether the virtual server has it now.
    pub(crate) is_listed: bool,
}

/// One virtual server, and what it did so far.
#[derive(Debug)]
pub(crate) struct Director {
    pub(in crate::kernel) ipvs: Client,
    key: ServiceKey,
    setup: Setup,
    flavour: Flavour,
    pub(in crate::kernel) doors: Doors,
    pub(in crate::kernel) servers: Vec<Server>,
    /// The kernel's list: newest first.
    pub(in crate::kernel) list: Vec<Name>,
    pub(in crate::kernel) lives: Vec<Live>,
    events: Vec<Event>,
    started: Instant,
}

impl Director {
    /// Makes a virtual server in the calling thread's network namespace, which is new.
    pub(crate) fn new(setup: Setup, flavour: Flavour) -> Result<Self> {
        doors::make_prefixes_local()?;
        for scheduler in ["lblc", "lblcr"] {
            let path = format!("/proc/sys/net/ipv4/vs/{scheduler}_expiration");
            std::fs::write(&path, setup.expiration_secs.to_string()).context(path)?;
        }
        let family = setup.family();
        let doors = Doors::open(family, setup.by_mark.then_some(MARK))?;
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
            doors,
            servers: Vec::new(),
            list: Vec::new(),
            lives: Vec::new(),
            events: Vec::new(),
            started: now(),
        })
    }

    /// The servers that there ever were, by the number of their name.
    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The time since the virtual server was made.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// What happened.
    pub(crate) fn into_scenario(self) -> Scenario {
        Scenario {
            family: self.setup.family(),
            flags: self.setup.flags,
            expiration_secs: self.setup.expiration_secs,
            stimulus: self.setup.stimulus(),
            events: self.events,
        }
    }

    /// A server that nobody has heard of yet.
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

    /// Adds a server; one that was there before may find its old connections.
    pub(crate) fn add(&mut self, name: Name, weight: u32, limits: Limits) -> Result<()> {
        let destination = self.describe(name, weight, limits);
        self.change(Change::AddDestination(self.key, destination))?;
        self.list.insert(0, name);
        let now = self.read(name)?;
        let server = self.server(name)?;
        server.is_listed = true;
        let address = server.address;
        let before = server.load;
        // What ended while it was away ended before it was written.
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
        // The last look at its connections, for they go on without it.
        self.observe()?;
        let key = DestinationKey::from(self.server(name)?.address);
        self.change(Change::DeleteDestination(self.key, key))?;
        self.server(name)?.is_listed = false;
        self.list.retain(|listed| *listed != name);
        self.events.push(Event::Remove(name));
        Ok(())
    }

    /// Writes a server anew, perhaps as it is.
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

    /// A new connection; answers the server that got it.
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
        // For the kernel it was perhaps later than for us, if this machine stood still meanwhile.
        let took = u64::try_from(self.age().as_millis())? - at_ms;
        let is_timed = self.setup.expiration_secs < DAY_SECS;
        ensure!(
            !is_timed || took <= tick_ms + CLOCK_DOUBT_MS,
            "a pick took {took} ms"
        );
        // Whatever else the servers' connections did, they did it before or after: nobody knows.
        let grown = self.grown()?;
        let expected = match (self.setup.traffic, answer) {
            (Traffic::OnePacket, _) | (_, None) => None,
            (_, Some(name)) => Some(name),
        };
        ensure!(
            grown.map(|(name, _)| name) == expected,
            "{source} went to {answer:?}, but the connections of {grown:?} grew"
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
        let Some(address) = self.doors.send(source, destination)? else {
            return Ok(None);
        };
        let name = self.name_at(address)?;
        if self.setup.traffic == Traffic::Udp {
            self.lives.push(Live {
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
        let dialling = self.doors.dial(source, destination)?;
        if self.grown()?.is_none() {
            // Refused: the client must not get the time to try again.
            drop(dialling);
            return Ok(None);
        }
        let (link, address) = self.doors.accept(dialling)?;
        let name = self.name_at(address)?;
        self.lives.push(Live {
            server: name,
            source,
            destination,
            link: Some(link),
            is_open: true,
            is_closed_by_client: false,
        });
        Ok(Some(name))
    }

    /// Does nothing for a while.
    pub(crate) fn rest(&mut self, duration: Duration) -> Result<()> {
        sleep(duration);
        self.observe()
    }

    /// Reads all connections, and writes down what changed. There must be no new ones.
    pub(in crate::kernel) fn observe(&mut self) -> Result<()> {
        for (name, now) in self.changed()? {
            let server = self.server(name)?;
            let before = server.load;
            let total = |it: Connections| it.active + it.inactive;
            ensure!(
                total(now) <= total(before.connections()),
                "{name} got connections from nowhere: {now:?}"
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

    /// The one server that has one connection more, where nothing else changed.
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
                    "connections of {name} moved during a pick: {before:?}, {now:?}"
                );
                Ok(Some((name, now)))
            }
            ref several => bail!("connections moved during a pick: {several:?}"),
        }
    }

    /// The servers whose connections are not what they were.
    fn changed(&mut self) -> Result<Vec<(Name, Connections)>> {
        let entries = self.ipvs.destinations(&self.key)?;
        ensure!(entries.len() == self.list.len(), "servers are missing");
        let mut changed = Vec::new();
        for (entry, name) in entries.iter().zip(&self.list) {
            let server = self.servers[usize::from(name.0)];
            let key = DestinationKey::from(server.address);
            ensure!(
                entry.destination.key == key,
                "the kernel's list has another order"
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
        entry.map(connections).context("the new server is missing")
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
        let is_there = |server: &Server| server.address == address;
        let index = self.servers.iter().position(is_there);
        let index = index.with_context(|| format!("{address} is no server"))?;
        Ok(Name(u16::try_from(index)?))
    }
}

fn connections(entry: &DestinationEntry) -> Connections {
    Connections {
        active: entry.active_connections,
        inactive: entry.inactive_connections,
    }
}
