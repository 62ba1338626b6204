//! Plays a scenario: draws one event after the other and applies it to a kernel.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::kernel::connection::Closer;
use crate::kernel::director::Director;
use crate::kernel::plan::{Plan, Weights};
use crate::kernel::sockets::SERVER_PORTS;
use crate::trace::{Event, Flavour, Limits, Name, Scenario};

/// Certainly longer than an expiration of three seconds.
const PAUSE: Duration = Duration::from_millis(3200);

/// The least difference between the distance of two picks and the expiration. If it is less, the
/// kernel's clock and ours may disagree about whether the expiration is exceeded.
pub(crate) const CLOCK_DOUBT_MS: u64 = 100;

/// The ports of clients, without those of the servers, which listen at every address.
const CLIENT_PORTS: RangeInclusive<u32> = 10_000..=65_000;

impl Plan {
    /// Plays the plan in the calling thread's network namespace, which must be new.
    pub(crate) fn play(self, flavour: Flavour) -> Result<Scenario> {
        let director = Director::new(self.setup.clone(), flavour)?;
        let mut play = Play {
            director,
            destinations: vec![self.setup.frontend],
            sources: Vec::new(),
            client: self.setup.frontend.ip(),
            used: HashSet::new(),
            next_port: 20_000,
            plan: self,
        };
        play.prepare()?;
        play.run()?;
        let scenario = play.director.into_scenario();
        ensure!(
            is_clear(&scenario),
            "two picks are too close to the expiration"
        );
        Ok(scenario)
    }
}

/// A plan that is being played.
#[derive(Debug)]
struct Play {
    plan: Plan,
    director: Director,
    destinations: Vec<SocketAddr>,
    sources: Vec<IpAddr>,
    /// The client of the next connection, unless another is drawn.
    client: IpAddr,
    /// All sources so far: a source that is used again would continue its old connection.
    used: HashSet<SocketAddr>,
    next_port: u16,
}

impl Play {
    fn prepare(&mut self) -> Result<()> {
        if self.plan.setup.by_mark {
            let more = if self.plan.extent.idle_secs.is_empty() {
                0
            } else {
                8
            };
            for _ in 0..self.plan.random.draw(1..=8) + more {
                let port = *self.plan.random.choose(&[80, 443]);
                let address = self.address(0x600);
                self.destinations.push(SocketAddr::new(address, port));
            }
        }
        for _ in 0..self.plan.random.draw(1..=6) {
            self.client = self.address(0);
            self.sources.push(self.client);
        }
        for _ in 0..self.plan.pool {
            loop {
                let port = *self.plan.random.choose(&SERVER_PORTS);
                let address = SocketAddr::new(self.address(0x100), port);
                let is_known = |server: &crate::kernel::director::Server| server.address == address;
                if !self.director.servers().iter().any(is_known) {
                    self.director.introduce(address)?;
                    break;
                }
            }
        }
        if self.plan.has_inactive_load {
            self.add_inactive_connections()?;
        }
        for _ in 0..self.plan.servers {
            self.add()?;
        }
        Ok(())
    }

    /// Adds a server with about 256 inactive connections, and one with none.
    ///
    /// When the second server has one active connection, a single inactive connection decides between
    /// them, and the flavours differ in which server wins.
    fn add_inactive_connections(&mut self) -> Result<()> {
        let weight = self.plan.random.draw(1..=4);
        let inactive = *self.plan.random.choose(&[255, 256, 256, 257]);
        let add = |play: &mut Self| match play.any(false)? {
            Some(name) => play.director.add(name, weight, Limits::default()),
            None => Ok(()),
        };
        add(self)?;
        // `lblc` and `lblcr` must not remember the other addresses yet.
        let others = self.destinations.split_off(1);
        for _ in 0..inactive {
            self.pick()?;
            for connection in self.director.open_links() {
                self.director.close(connection, Closer::Server)?;
            }
        }
        self.destinations.extend(others);
        add(self)?;
        for _ in 0..8 {
            self.pick()?;
        }
        Ok(())
    }

    /// Returns a random address. `block` separates clients, servers and frontends.
    fn address(&mut self, block: u16) -> IpAddr {
        let random = &mut self.plan.random;
        let low = random.draw(1..=0xfffe);
        let [.., high, low] = low.to_be_bytes();
        let net = u8::try_from(random.draw(0..=15)).unwrap_or_default();
        if self.plan.setup.frontend.is_ipv4() {
            let [_, second] = (block >> 4).to_be_bytes();
            return match (block, random.draw(0..=2)) {
                (0, 0) => Ipv4Addr::new(192, 168, high, low).into(),
                (0, 1) => Ipv4Addr::new(172, 16 + net, high, low).into(),
                _ => Ipv4Addr::new(10, second + net, high, low).into(),
            };
        }
        let [_, _, a, b] = random.draw(0..=u32::from(u16::MAX)).to_be_bytes();
        let (first, second) = match random.chance(50) {
            true => (0x2001, 0xdb8),
            false => (0xfd00, u16::from_be_bytes([a, b])),
        };
        let last = u16::from_be_bytes([high, low]);
        Ipv6Addr::new(first, second, block, net.into(), 0, 0, 0, last).into()
    }

    fn run(&mut self) -> Result<()> {
        let idle_secs = self.plan.extent.idle_secs;
        let all = self.destinations.clone();
        for &secs in idle_secs {
            // Some addresses are not used for a while, so that they are forgotten.
            let random = &mut self.plan.random;
            self.destinations.retain(|_| random.chance(50));
            if self.destinations.is_empty() {
                self.destinations.clone_from(&all);
            }
            self.act(self.plan.extent.picks / (idle_secs.len() + 1))?;
            self.destinations.clone_from(&all);
            self.director.rest(Duration::from_secs(secs))?;
        }
        self.act(self.plan.extent.picks / (idle_secs.len() + 1))
    }

    /// Draws and applies events until there were `wanted` new connections.
    fn act(&mut self, wanted: usize) -> Result<()> {
        let mut picks = 0;
        while picks < wanted {
            let draw = self.plan.random.draw(0..=99);
            match draw {
                0..=62 => {
                    self.pick()?;
                    picks += 1;
                }
                63..=76 => self.close()?,
                77..=85 => self.write()?,
                86..=90 => self.add()?,
                91..=94 => self.remove()?,
                95..=96 => self.expire()?,
                _ => self.pause()?,
            }
        }
        Ok(())
    }

    fn pick(&mut self) -> Result<()> {
        let hashes_sources = ["sh", "mh"].contains(&self.plan.setup.scheduler.as_str());
        // Clients must return, to prove that the hash sends them to the same server again.
        if hashes_sources && self.plan.random.chance(50) {
            let source = self.address(0);
            self.sources.push(source);
            self.client = source;
        } else if self
            .plan
            .random
            .chance(if hashes_sources { 60 } else { 10 })
        {
            self.client = *self.plan.random.choose(&self.sources);
        }
        if self.plan.setup.flags.port && self.plan.random.chance(20) {
            let port = self.plan.random.draw(CLIENT_PORTS);
            self.next_port = u16::try_from(port)?;
        }
        let destination = *self.plan.random.choose(&self.destinations);
        let source = loop {
            let source = SocketAddr::new(self.client, self.next_port);
            self.next_port = self.next_port.checked_add(1).unwrap_or(10_000);
            if self.used.insert(source) {
                break source;
            }
        };
        self.director.pick(source, destination)?;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        let open = self.director.open_links();
        if open.is_empty() {
            return Ok(());
        }
        let connection = *self.plan.random.choose(&open);
        let closer = match self.plan.random.chance(60) {
            true => Closer::Server,
            false => Closer::Client,
        };
        self.director.close(connection, closer)
    }

    /// Sets other weights or thresholds of a server, or the same ones again.
    fn write(&mut self) -> Result<()> {
        let Some(name) = self.any(true)? else {
            return Ok(());
        };
        let server = self.director.servers()[usize::from(name.0)];
        let (weight, limits) = match self.plan.random.draw(0..=9) {
            0 => (server.weight, server.limits),
            1..=3 if self.plan.has_limits => (server.weight, self.limits()),
            _ => (self.weight(), server.limits),
        };
        self.director.write(name, weight, limits)
    }

    fn add(&mut self) -> Result<()> {
        let Some(name) = self.any(false)? else {
            return Ok(());
        };
        let (weight, limits) = (self.weight(), self.limits());
        self.director.add(name, weight, limits)
    }

    fn remove(&mut self) -> Result<()> {
        match self.any(true)? {
            Some(name) => self.director.remove(name),
            None => Ok(()),
        }
    }

    fn expire(&mut self) -> Result<()> {
        let expirable = self.director.expirable();
        if expirable.is_empty() || self.plan.extent.expiries == 0 {
            return Ok(());
        }
        self.plan.extent.expiries -= 1;
        let chance = *self.plan.random.choose(&[20, 50, 90]);
        let random = &mut self.plan.random;
        let some: Vec<usize> = expirable
            .into_iter()
            .filter(|_| random.chance(chance))
            .collect();
        self.director.expire(&some)
    }

    fn pause(&mut self) -> Result<()> {
        if self.plan.extent.pauses > 0 {
            self.plan.extent.pauses -= 1;
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns a random server that is listed, or one that is not.
    fn any(&mut self, is_listed: bool) -> Result<Option<Name>> {
        let servers = self.director.servers();
        let some: Vec<usize> = (0..servers.len())
            .filter(|&index| servers[index].is_listed == is_listed)
            .collect();
        if some.is_empty() {
            return Ok(None);
        }
        let index = u16::try_from(*self.plan.random.choose(&some)).context("too many servers")?;
        Ok(Some(Name(index)))
    }

    fn weight(&mut self) -> u32 {
        let random = &mut self.plan.random;
        if random.chance(12) {
            return 0;
        }
        match self.plan.weights {
            Weights::Equal => 1,
            Weights::Few => random.draw(1..=4),
            Weights::Spread => random.draw(1..=100),
            Weights::Steps => 6 * random.draw(1..=10),
            Weights::Wide => {
                // wrr tries every level below the greatest weight, and twos adds the weights in 32 bits.
                let bits = match self.plan.setup.scheduler.as_str() {
                    "wrr" => 10,
                    "twos" => 24,
                    _ => 31,
                };
                let bits = random.draw(1..=bits);
                random.draw(1..=(1 << bits) - 1)
            }
        }
    }

    fn limits(&mut self) -> Limits {
        let random = &mut self.plan.random;
        if !self.plan.has_limits || random.chance(30) {
            return Limits::default();
        }
        let upper = random.draw(1..=8);
        let lower = if random.chance(50) {
            0
        } else {
            random.draw(1..=upper)
        };
        Limits { upper, lower }
    }
}

/// Returns whether no distance of two picks is within [`CLOCK_DOUBT_MS`] of the expiration.
fn is_clear(scenario: &Scenario) -> bool {
    let times = scenario.events.iter().filter_map(|event| match event {
        Event::Pick(pick, _) => Some(pick.at_ms),
        _ => None,
    });
    let times: Vec<u64> = times.collect();
    let expiration = u64::from(scenario.expiration_secs) * 1000;
    times.iter().enumerate().all(|(index, early)| {
        let is_near = |late: &&u64| (*late - early).abs_diff(expiration) < CLOCK_DOUBT_MS;
        !times[index..].iter().any(|late| is_near(&late))
    })
}
