//! The clients: when they connect, to which address, and how much work a connection needs.

use std::net::{IpAddr, Ipv4Addr};

use crate::random::{Duration, Popularity, Random};

/// How connections arrive. The mean rate is given separately.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// A Markov-modulated Poisson process with two states, burst and quiet, both of exponential
    /// length.
    Bursty {
        /// The rate in a burst, divided by the mean rate.
        factor: f64,
        /// The mean length of a burst, in seconds.
        burst: f64,
        /// The mean length of a quiet period, in seconds.
        quiet: f64,
    },
}

/// Connections that stay open and do little.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IdleConnections {
    /// Their share of all connections.
    pub(crate) share: f64,
    /// How long they stay open.
    pub(crate) duration: Duration,
    /// The share of a core that each takes meanwhile.
    pub(crate) cores: f64,
}

/// The behaviour of all clients, apart from the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Workload {
    pub(crate) arrivals: Arrivals,
    /// Work per connection, in seconds of one core.
    pub(crate) work: Duration,
    pub(crate) idle: Option<IdleConnections>,
    /// The number of clients.
    pub(crate) clients: u32,
    /// How unequal the clients are; see [`Popularity`].
    pub(crate) client_skew: f64,
    /// The number of frontend addresses; more than one needs a firewall-mark virtual server.
    pub(crate) destinations: u32,
    /// How unequal the frontend addresses are.
    pub(crate) destination_skew: f64,
}

impl Workload {
    /// Returns the mean work of a connection, in seconds of one core.
    pub(crate) fn mean_work(&self) -> f64 {
        let idle = self.idle.map_or((0.0, 0.0), |idle| {
            (idle.share, idle.duration.mean() * idle.cores)
        });
        (1.0 - idle.0) * self.work.mean() + idle.0 * idle.1
    }
}

/// The work of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Demand {
    /// Seconds of one core.
    Work(f64),
    /// The connection stays open for this time and takes this share of a core.
    Idle { secs: f64, cores: f64 },
}

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// The time in seconds.
    pub(crate) at: f64,
    pub(crate) client: u32,
    pub(crate) client_port: u16,
    pub(crate) destination: u32,
    pub(crate) demand: Demand,
}

/// Draws connections. They do not depend on the scheduler, so all schedulers get the same ones.
///
/// Times, clients and work have separate random sequences: two workloads that differ in one of them
/// are equal in the others.
#[derive(Debug)]
pub(crate) struct Source {
    workload: Workload,
    /// New connections per second.
    rate: f64,
    clients: Popularity,
    destinations: Popularity,
    times: Random,
    names: Random,
    demands: Random,
    now: f64,
    in_burst: bool,
    until: f64,
}

impl Source {
    pub(crate) fn new(workload: Workload, rate: f64, seed: u64) -> Self {
        Self {
            workload,
            rate,
            clients: Popularity::new(workload.clients, workload.client_skew),
            destinations: Popularity::new(workload.destinations, workload.destination_skew),
            times: Random::new(seed, 1),
            names: Random::new(seed, 2),
            demands: Random::new(seed, 3),
            now: 0.0,
            in_burst: true,
            until: 0.0,
        }
    }

    /// Returns the next connection. There is no end.
    pub(crate) fn next_arrival(&mut self) -> Arrival {
        self.now = self.next_time();
        Arrival {
            at: self.now,
            client: self.clients.draw(&mut self.names),
            // Linux's default range of client ports, `net.ipv4.ip_local_port_range`: 32,768 to
            // 60,999.
            client_port: u16::try_from(32_768 + self.names.below(28_232)).unwrap_or_default(),
            destination: self.destinations.draw(&mut self.names),
            demand: self.demand(),
        }
    }

    fn next_time(&mut self) -> f64 {
        let Arrivals::Bursty {
            factor,
            burst,
            quiet,
        } = self.workload.arrivals
        else {
            return self.now + self.times.exponential(1.0 / self.rate);
        };
        let share = burst / (burst + quiet);
        // The rate between bursts, so that the mean rate stays as configured.
        let low = ((1.0 - factor * share) / (1.0 - share)).max(0.0);
        let mut now = self.now;
        loop {
            let factor = if self.in_burst { factor } else { low };
            let at = now + self.times.exponential(1.0 / (self.rate * factor));
            if at <= self.until {
                return at;
            }
            // Poisson arrivals have no memory, so draw again after a change of the state.
            now = self.until;
            self.in_burst = !self.in_burst;
            let length = if self.in_burst { burst } else { quiet };
            self.until += self.times.exponential(length);
        }
    }

    fn demand(&mut self) -> Demand {
        match self.workload.idle {
            Some(idle) if self.demands.chance(idle.share) => Demand::Idle {
                secs: idle.duration.draw(&mut self.demands),
                cores: idle.cores,
            },
            _ => Demand::Work(self.workload.work.draw(&mut self.demands)),
        }
    }
}

/// Returns the address of client `number` on node `number % nodes`. Clients of a node share a /24.
pub(crate) fn client_address(number: u32, nodes: u32) -> IpAddr {
    let (node, pod) = (number % nodes, number / nodes);
    // 10.0.0.0/8 holds 65,536 nodes of 256 clients; further clients of a node use the next range.
    let host = (node + (pod >> 8) * nodes) << 8 | (pod & 0xff);
    Ipv4Addr::from_bits(0x0a00_0000 | (host & 0x00ff_ffff)).into()
}

/// Returns frontend address `number`.
pub(crate) fn destination_address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc612_0000 | (number & 0x0001_ffff)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Workload = Workload {
        arrivals: Arrivals::Poisson,
        work: Duration::Exponential { mean: 0.1 },
        idle: None,
        clients: 100,
        client_skew: 0.0,
        destinations: 1,
        destination_skew: 0.0,
    };

    /// Returns the number of arrivals in each second.
    fn windows(workload: Workload, rate: f64, seconds: usize) -> Vec<f64> {
        let mut source = Source::new(workload, rate, 5);
        let mut windows = vec![0.0; seconds];
        let mut arrival = source.next_arrival();
        for (count, end) in windows.iter_mut().zip(1..) {
            while arrival.at < f64::from(end) {
                *count += 1.0;
                arrival = source.next_arrival();
            }
        }
        windows
    }

    /// Returns the mean, and the variance divided by the mean: 1 for a Poisson process.
    fn dispersion(windows: &[f64]) -> (f64, f64) {
        let count = windows.len() as f64;
        let mean = windows.iter().sum::<f64>() / count;
        let variance = windows.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / count;
        (mean, variance / mean)
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_dispersion() {
        let (mean, dispersion) = dispersion(&windows(PLAIN, 50.0, 5_000));
        assert!((mean - 50.0).abs() < 1.0, "{mean}");
        assert!((dispersion - 1.0).abs() < 0.1, "{dispersion}");
    }

    #[test]
    fn bursts_keep_the_rate_and_increase_the_dispersion() {
        let bursty = Workload {
            arrivals: Arrivals::Bursty {
                factor: 3.0,
                burst: 2.0,
                quiet: 6.0,
            },
            ..PLAIN
        };
        let (mean, dispersion) = dispersion(&windows(bursty, 50.0, 20_000));
        assert!((mean - 50.0).abs() < 2.0, "{mean}");
        assert!(dispersion > 10.0, "{dispersion}");
    }

    #[test]
    fn idle_connections_have_their_share_and_count_as_work() {
        let idle = IdleConnections {
            share: 0.1,
            duration: Duration::Exponential { mean: 50.0 },
            cores: 0.01,
        };
        let workload = Workload {
            idle: Some(idle),
            ..PLAIN
        };
        assert!((workload.mean_work() - 0.14).abs() < 1e-12);
        let mut source = Source::new(workload, 1.0, 1);
        let idle = (0..50_000)
            .filter(|_| matches!(source.next_arrival().demand, Demand::Idle { .. }))
            .count();
        assert!((4_700..5_300).contains(&idle), "{idle}");
    }

    #[test]
    fn arrival_times_do_not_depend_on_the_work() {
        let other = Workload {
            work: Duration::LogNormal {
                mean: 1.0,
                sigma: 2.0,
            },
            ..PLAIN
        };
        let times = |workload| {
            let mut source = Source::new(workload, 10.0, 9);
            (0..100)
                .map(|_| source.next_arrival().at)
                .collect::<Vec<_>>()
        };
        assert_eq!(times(PLAIN), times(other));
    }

    #[test]
    fn every_client_has_its_own_address() {
        for nodes in [1, 7, 256] {
            let addresses: std::collections::HashSet<IpAddr> = (0..5_000)
                .map(|number| client_address(number, nodes))
                .collect();
            assert_eq!(addresses.len(), 5_000);
        }
        assert_eq!(client_address(3, 256).to_string(), "10.0.3.0");
        assert_eq!(destination_address(1).to_string(), "198.18.0.1");
    }
}
