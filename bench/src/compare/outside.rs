//! Schedulers that are not in the crate `schedulers`, written with its public API only.
//!
//! `slots` is what the dataplane nftables does with rr and wrr: each new connection draws a slot, and a server has as
//! many slots as its weight.
//!
//! Peak EWMA with two choices draws two servers and picks the one with the lower expected latency:
//! the moving average of its latencies times the number of its connections, the new one included.
//! Recent latencies count more, and a high one counts at once. The idea is that of Finagle's load
//! balancers. The draw keeps independent nodes from all picking the same server.

use std::time::Duration;

use schedulers::{Error, Options, Registry, Request, Scheduler, ServerId, Servers};

use crate::random::Random;

/// The names under which they are registered.
pub(crate) const NAME: &str = "peak-ewma";
pub(crate) const SLOTS: &str = "slots";

/// After this time the weight of a latency is 1/e.
const MEMORY: Duration = Duration::from_secs(5);
/// The number of draws of ineligible servers before all servers are scanned.
const TRIES: u32 = 8;

/// Registers [`PeakEwma`] and [`Slots`] under their names.
///
/// # Errors
/// A name is taken.
pub(crate) fn register(registry: &mut Registry) -> Result<(), Error> {
    registry.register(SLOTS, |it: &Options| {
        Box::new(Slots(Random::new(it.seed, 0)))
    })?;
    registry.register(NAME, |options: &Options| {
        Box::new(PeakEwma {
            random: options.seed,
            listed: Vec::new(),
            latencies: Vec::new(),
        })
    })
}

/// Picks the server of a random slot.
///
/// # Cost
/// A pick takes one step per slot.
#[derive(Debug)]
struct Slots(Random);

impl Scheduler for Slots {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let eligible = servers.iter().filter(|(_, server)| server.is_eligible());
        let mut slots = eligible.flat_map(|(id, it)| (0..it.weight()).map(move |_| id));
        let count = slots.clone().count();
        slots.nth(self.0.below(u32::try_from(count).ok()?) as usize)
    }
}

/// Picks the better of two servers drawn at random.
///
/// # Cost
/// A pick takes constant time while most servers are eligible; a removal takes one step per server.
#[derive(Debug)]
struct PeakEwma {
    random: u64,
    listed: Vec<ServerId>,
    /// The latency of each server, by [`ServerId::index`].
    latencies: Vec<Latency>,
}

/// The moving average of a server's latency.
#[derive(Clone, Copy, Debug, Default)]
struct Latency {
    /// In seconds. 0 before the first measurement, so that new servers are preferred.
    average: f64,
    at: Duration,
}

impl PeakEwma {
    /// Returns a random eligible server, if there is one.
    fn draw(&mut self, servers: &Servers) -> Option<ServerId> {
        let count = u32::try_from(self.listed.len()).ok()?;
        let eligible = |id: &ServerId| {
            servers
                .listed(*id)
                .is_some_and(|server| server.is_eligible())
        };
        for _ in 0..TRIES {
            // A 64-bit linear congruential generator; its upper half is random enough for this.
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let index = (u64::from(count) * (self.random >> 32)) >> 32;
            let id = self.listed.get(usize::try_from(index).ok()?)?;
            if eligible(id) {
                return Some(*id);
            }
        }
        self.listed.iter().copied().find(eligible)
    }

    /// Returns the expected latency of a connection, in seconds per unit of weight.
    fn expectation(&self, servers: &Servers, id: ServerId) -> f64 {
        let latency = self
            .latencies
            .get(id.index())
            .map_or(0.0, |known| known.average);
        servers.get(id).map_or(f64::INFINITY, |server| {
            let connections = f64::from(server.active()) + 1.0;
            latency.max(1e-6) * connections / f64::from(server.weight().max(1))
        })
    }
}

impl Scheduler for PeakEwma {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let one = self.draw(servers)?;
        let other = self.draw(servers)?;
        let is_better = self.expectation(servers, other) < self.expectation(servers, one);
        Some(if is_better { other } else { one })
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.listed = servers.iter().map(|(id, _)| id).collect();
        self.latencies = vec![Latency::default(); servers.slots()];
        Ok(())
    }

    fn added(&mut self, servers: &Servers, server: ServerId) {
        self.listed.push(server);
        self.latencies.resize(servers.slots(), Latency::default());
        self.latencies[server.index()] = Latency::default();
    }

    fn removed(&mut self, _: &Servers, server: ServerId, _: Option<ServerId>) {
        self.listed.retain(|&id| id != server);
    }

    fn measured(&mut self, _: &Servers, server: ServerId, latency: Duration, at: Duration) {
        let Some(known) = self.latencies.get_mut(server.index()) else {
            return;
        };
        let latency = latency.as_secs_f64();
        let age = at.saturating_sub(known.at).as_secs_f64();
        let old = (-age / MEMORY.as_secs_f64()).exp();
        *known = Latency {
            average: if latency > known.average {
                latency
            } else {
                old * known.average + (1.0 - old) * latency
            },
            at,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedulers::Balancer;

    const REQUEST: Request = Request {
        source: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        source_port: 40_000,
        destination: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        destination_port: 80,
        at: Duration::ZERO,
    };

    fn balancer(servers: u8) -> (Balancer, Vec<ServerId>) {
        let mut registry = Registry::new();
        register(&mut registry).unwrap();
        let options = Options::default();
        let mut balancer = Balancer::new(registry.build(NAME, &options).unwrap(), &options);
        let ids = (0..servers)
            .map(|number| balancer.add(([10, 0, 0, number], 80).into(), 1).unwrap())
            .collect();
        (balancer, ids)
    }

    #[test]
    fn the_faster_server_is_preferred_and_old_latencies_are_forgotten() {
        let (mut balancer, ids) = balancer(2);
        let at = Duration::from_secs;
        balancer.measured(ids[0], at(2), at(0)).unwrap();
        balancer.measured(ids[1], at(1), at(0)).unwrap();
        let picks = |balancer: &mut Balancer| {
            (0..400)
                .filter(|_| balancer.pick(&REQUEST) == Some(ids[0]))
                .count()
        };
        // The scheduler picks the slower server only if both draws select it.
        let slow = picks(&mut balancer);
        assert!((60..140).contains(&slow), "{slow}");
        balancer
            .measured(ids[0], Duration::from_millis(1), at(60))
            .unwrap();
        let fast = picks(&mut balancer);
        assert!((260..340).contains(&fast), "{fast}");
    }

    #[test]
    fn a_server_has_as_many_slots_as_its_weight() {
        let mut registry = Registry::new();
        register(&mut registry).unwrap();
        let options = Options::default();
        let mut balancer = Balancer::new(registry.build(SLOTS, &options).unwrap(), &options);
        assert_eq!(balancer.pick(&REQUEST), None);
        let ids = [1, 3, 0].map(|weight| {
            let server = ([10, 0, 0, u8::try_from(weight).unwrap()], 80);
            balancer.add(server.into(), weight).unwrap()
        });
        let picks: Vec<_> = (0..4_000).filter_map(|_| balancer.pick(&REQUEST)).collect();
        let count = |id| picks.iter().filter(|it| **it == id).count();
        let [one, three, none] = ids.map(count);
        assert!((900..1_100).contains(&one), "{one}");
        assert_eq!([one + three, none], [4_000, 0]);
    }

    #[test]
    fn ineligible_servers_are_never_picked() {
        let (mut balancer, ids) = balancer(40);
        for &id in &ids[1..] {
            balancer.set_weight(id, 0).unwrap();
        }
        for _ in 0..100 {
            assert_eq!(balancer.pick(&REQUEST), Some(ids[0]));
        }
        balancer.remove(ids[0]).unwrap();
        assert_eq!(balancer.pick(&REQUEST), None);
        for &id in &ids[1..] {
            balancer.remove(id).unwrap();
        }
        assert_eq!(balancer.pick(&REQUEST), None);
    }
}
