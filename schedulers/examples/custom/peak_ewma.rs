//! A scheduler that the kernel does not have, written with the public API only.

use std::time::Duration;

use schedulers::{Options, Request, Scheduler, Server, ServerId, Servers};

/// Picks the server with the lower latency × connections of two servers drawn at random.
///
/// The latency of a server is a moving average that rises to every peak at once and decreases slowly
/// (Finagle's "peak EWMA"). Because two servers are drawn, many balancers do not all pick the same server
/// (Mitzenmacher, "The power of two choices", 2001). Weights above 0 do not matter.
///
/// A pick takes constant time while at least half of the servers are eligible. 24 bytes per server.
#[derive(Debug)]
pub(crate) struct PeakEwma {
    /// The listed servers.
    candidates: Vec<ServerId>,
    /// By [`ServerId::index`].
    latencies: Vec<Latency>,
    random: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Latency {
    /// In seconds. A server without a measurement has 0, so that it is tried.
    average: f64,
    measured: Duration,
}

/// After this time, the weight of a peak is 1/e.
const DECAY: Duration = Duration::from_secs(10);

/// How often an ineligible server is drawn before all servers are scanned.
const TRIES: usize = 8;

impl PeakEwma {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            candidates: Vec::new(),
            latencies: Vec::new(),
            random: options.seed | 1,
        }
    }

    /// Returns a random number: Xorshift (Marsaglia, 2003).
    fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    fn draw_eligible(&mut self, servers: &Servers) -> Option<ServerId> {
        if self.candidates.is_empty() {
            return None;
        }
        let is_eligible = |id: &ServerId| servers.listed(*id).is_some_and(Server::is_eligible);
        (0..TRIES)
            .map(|_| {
                let index = self.draw(self.candidates.len());
                self.candidates[index]
            })
            .find(is_eligible)
            .or_else(|| self.candidates.iter().copied().find(is_eligible))
    }

    fn cost(&self, servers: &Servers, id: ServerId) -> f64 {
        let active = servers.get(id).map_or(0, Server::active);
        self.latencies[id.index()].average * (f64::from(active) + 1.0)
    }
}

impl Scheduler for PeakEwma {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let one = self.draw_eligible(servers)?;
        let other = self.draw_eligible(servers)?;
        let is_lighter = self.cost(servers, other) < self.cost(servers, one);
        Some(if is_lighter { other } else { one })
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), schedulers::Error> {
        self.candidates = servers.iter().map(|(id, _)| id).collect();
        self.latencies = vec![Latency::default(); servers.slots()];
        Ok(())
    }

    fn added(&mut self, servers: &Servers, server: ServerId) {
        self.candidates.push(server);
        self.latencies.resize(servers.slots(), Latency::default());
        self.latencies[server.index()] = Latency::default();
    }

    fn removed(&mut self, _: &Servers, server: ServerId, _: Option<ServerId>) {
        self.candidates.retain(|&candidate| candidate != server);
    }

    fn measured(&mut self, _: &Servers, server: ServerId, latency: Duration, at: Duration) {
        let known = &mut self.latencies[server.index()];
        let latency = latency.as_secs_f64();
        let age = at.saturating_sub(known.measured).as_secs_f64();
        let share = (-age / DECAY.as_secs_f64()).exp();
        known.average = latency.max(known.average * share + latency * (1.0 - share));
        known.measured = at;
    }
}
