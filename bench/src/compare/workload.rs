//! What clients do: who connects when, to which address, and what the connection takes.

use std::net::{IpAddr, Ipv4Addr};

use super::random::{Duration, Popularity, Random};

/// How connections arrive. The mean rate is given apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// A Markov-modulated Poisson process with two states: bursts and the quiet between them, both
    /// of exponential length.
    Bursty {
        /// The rate in a burst, in mean rates.
        factor: f64,
        /// Mean length of a burst, in seconds.
        burst: f64,
        /// Mean length of the quiet, in seconds.
        quiet: f64,
    },
}

/// Connections that merely stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stays {
    /// Which share of all connections they are.
    pub(crate) share: f64,
    /// How long they stay.
    pub(crate) duration: Duration,
    /// How much of a core each takes all that time.
    pub(crate) cores: f64,
}

/// Who asks for what, but for the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Workload {
    pub(crate) arrivals: Arrivals,
    /// Work per connection, in seconds of one core.
    pub(crate) work: Duration,
    pub(crate) stays: Option<Stays>,
    /// How many clients there are.
    pub(crate) clients: u32,
    /// How unequal they are; see [`Popularity`].
    pub(crate) client_skew: f64,
    /// How many addresses they dial: more than one for a firewall-mark virtual server only.
    pub(crate) destinations: u32,
    /// How unequal those are.
    pub(crate) destination_skew: f64,
}

impl Workload {
    /// Seconds of one core that a connection takes on average.
    pub(crate) fn mean_work(&self) -> f64 {
        let stays = self.stays.map_or((0.0, 0.0), |stays| {
            (stays.share, stays.duration.mean() * stays.cores)
        });
        (1.0 - stays.0) * self.work.mean() + stays.0 * stays.1
    }
}

/// What a connection takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Demand {
    /// Seconds of one core.
    Work(f64),
    /// It stays for so many seconds, and takes so much of a core.
    Stay { secs: f64, cores: f64 },
}

/// A connection that comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Arrival {
    /// When, in seconds.
    pub(crate) at: f64,
    pub(crate) client: u32,
    pub(crate) client_port: u16,
    pub(crate) destination: u32,
    pub(crate) demand: Demand,
}

/// Draws arrivals; the same for every scheduler, since none of it depends on what happens to them.
///
/// Each property has a random sequence of its own, so that scenarios that differ in one are alike in
/// the others.
#[derive(Debug)]
pub(crate) struct Source {
    workload: Workload,
    /// Connections a second.
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

    /// The next connection. There is always one.
    pub(crate) fn next_arrival(&mut self) -> Arrival {
        self.now = self.next_time();
        Arrival {
            at: self.now,
            client: self.clients.draw(&mut self.names),
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
        let low = ((1.0 - factor * share) / (1.0 - share)).max(0.0);
        let mut now = self.now;
        loop {
            let factor = if self.in_burst { factor } else { low };
            let at = now + self.times.exponential(1.0 / (self.rate * factor));
            if at <= self.until {
                return at;
            }
            // Arrivals have no memory: what did not come before the state changed is drawn anew.
            now = self.until;
            self.in_burst = !self.in_burst;
            let length = if self.in_burst { burst } else { quiet };
            self.until += self.times.exponential(length);
        }
    }

    fn demand(&mut self) -> Demand {
        match self.workload.stays {
            Some(stays) if self.demands.chance(stays.share) => Demand::Stay {
                secs: stays.duration.draw(&mut self.demands),
                cores: stays.cores,
            },
            _ => Demand::Work(self.workload.work.draw(&mut self.demands)),
        }
    }
}

/// The address of client `number`, who lives on node `number % nodes`: pods of a node share a /24.
pub(crate) fn client_address(number: u32, nodes: u32) -> IpAddr {
    let (node, pod) = (number % nodes, number / nodes);
    // 10.0.0.0/8 has room for 65,536 nodes of 256 pods; a node of more goes on in the next range.
    let host = (node + (pod >> 8) * nodes) << 8 | (pod & 0xff);
    Ipv4Addr::from_bits(0x0a00_0000 | (host & 0x00ff_ffff)).into()
}

/// The address number `number` that clients dial.
pub(crate) fn destination_address(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc612_0000 | (number & 0x0001_ffff)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Workload = Workload {
        arrivals: Arrivals::Poisson,
        work: Duration::Exponential { mean: 0.1 },
        stays: None,
        clients: 100,
        client_skew: 0.0,
        destinations: 1,
        destination_skew: 0.0,
    };

    /// Arrivals per window of one second.
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

    /// Mean, and variance by mean: 1 for a Poisson process.
    fn dispersion(windows: &[f64]) -> (f64, f64) {
        let count = windows.len() as f64;
        let mean = windows.iter().sum::<f64>() / count;
        let variance = windows.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / count;
        (mean, variance / mean)
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread() {
        let (mean, dispersion) = dispersion(&windows(PLAIN, 50.0, 5_000));
        assert!((mean - 50.0).abs() < 1.0, "{mean}");
        assert!((dispersion - 1.0).abs() < 0.1, "{dispersion}");
    }

    #[test]
    fn bursts_keep_the_rate_and_widen_the_spread() {
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
    fn stays_are_their_share_and_count_as_work() {
        let stays = Stays {
            share: 0.1,
            duration: Duration::Exponential { mean: 50.0 },
            cores: 0.01,
        };
        let workload = Workload {
            stays: Some(stays),
            ..PLAIN
        };
        assert!((workload.mean_work() - 0.14).abs() < 1e-12);
        let mut source = Source::new(workload, 1.0, 1);
        let stays = (0..50_000)
            .filter(|_| matches!(source.next_arrival().demand, Demand::Stay { .. }))
            .count();
        assert!((4_700..5_300).contains(&stays), "{stays}");
    }

    #[test]
    fn times_do_not_depend_on_demands() {
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
    fn clients_have_addresses_of_their_own() {
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
