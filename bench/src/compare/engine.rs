//! The simulation: one event after the other, in order of time.
//!
//! ```text
//!  Source ──arrival──▶ Node ──connect──▶ Balancer          (each node its own)
//!                       ▲                    │ number of a server
//!                       │ end                ▼
//!                       └──────────────── Station          (shared by all nodes)
//!                                            │
//!                                         Outcome
//! ```
//!
//! Nothing here reads a clock, and every random number comes from the seed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering as Memory};

use schedulers::{Balancer, Error, Implementation, Options, Registry, Request};

use super::node::{AFTER_END, End, Node, duration};
use super::outcome::{BINS, Outcome};
use super::random::Random;
use super::scenario::{Action, Kinship, Scenario, Step};
use super::station::{Health, Station, Visit};
use super::tournament::Tournament;
use super::workload::{Arrival, Demand, Source, client_address, destination_address};

/// The part of the whole time that is not measured: servers start empty.
const WARM_UP: f64 = 0.1;
/// How long before the simulation the nodes' clocks start, in seconds: enough for connections that
/// are forgotten before it starts.
const PAST: f64 = 2.0 * AFTER_END;
/// How often loads are looked at.
const SAMPLES: u32 = 2_000;
/// Events between two looks at whether to stop.
const PATIENCE: u32 = 4_096;

/// Runs `scenario` with the scheduler of this name until about so many connections have come.
///
/// Nothing, if `stop` became true meanwhile.
///
/// # Errors
/// `registry` has no such scheduler, or it chose a server that is not there.
pub(crate) fn run(
    scenario: &Scenario,
    registry: &Registry,
    scheduler: &str,
    connections: u64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Option<Outcome>, Error> {
    let horizon = connections as f64 / scenario.rate();
    let mut simulation = Simulation::new(scenario, registry, scheduler, horizon, seed)?;
    let mut events = 0_u32;
    while simulation.advance()? {
        events = events.wrapping_add(1);
        if events.is_multiple_of(PATIENCE) && stop.load(Memory::Relaxed) {
            return Ok(None);
        }
    }
    Ok(Some(simulation.finish()))
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    horizon: f64,
    now: f64,
    nodes: Vec<Node>,
    stations: Vec<Station>,
    /// When each station's next connection is done.
    departures: Tournament,
    stays: BinaryHeap<Stay>,
    source: Source,
    /// Infinitely late when the time is over.
    arrival: Arrival,
    /// What is still to happen, the next last.
    script: Vec<(f64, Step)>,
    next_sample: f64,
    samples: u32,
    /// By number of server: 0 if it may get no connections.
    weights: Vec<u32>,
    kin: Kin,
    present: u64,
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    fn new(
        scenario: &'a Scenario,
        registry: &Registry,
        scheduler: &str,
        horizon: f64,
        seed: u64,
    ) -> Result<Self, Error> {
        let servers = scenario.servers.len();
        let mut nodes = Vec::new();
        for number in 0..u64::from(scenario.nodes) {
            let options = Options {
                implementation: Implementation::Indexed,
                seed: seed.wrapping_mul(0x1_0000).wrapping_add(number),
                ..Options::default()
            };
            let balancer = Balancer::new(registry.build(scheduler, &options)?, &options);
            let mut node = Node::new(balancer, servers);
            for (number, kind) in scenario.servers.iter().enumerate() {
                if let Some(weight) = kind.weight {
                    node.list(number, weight)?;
                }
            }
            nodes.push(node);
        }
        for (node, number) in nodes.iter_mut().zip(0..) {
            give_past(node, number, scenario, horizon, seed)?;
        }
        let station =
            |kind: &super::scenario::ServerKind| Station::new(scenario.discipline, kind.cores);
        let mut script: Vec<(f64, Step)> = scenario
            .script
            .iter()
            .map(|&step| (step.share * horizon + step.plus, step))
            .collect();
        script.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let mut source = Source::new(scenario.workload, scenario.rate(), seed);
        let arrival = source.next_arrival();
        Ok(Self {
            scenario,
            horizon,
            now: 0.0,
            nodes,
            stations: scenario.servers.iter().map(station).collect(),
            departures: Tournament::new(servers),
            stays: BinaryHeap::new(),
            source,
            arrival,
            script,
            next_sample: horizon / f64::from(SAMPLES),
            samples: 0,
            weights: scenario
                .servers
                .iter()
                .map(|kind| kind.weight.unwrap_or(0))
                .collect(),
            kin: Kin::new(match scenario.kinship {
                Kinship::Client => scenario.workload.clients,
                Kinship::Destination => scenario.workload.destinations,
            }),
            present: 0,
            outcome: Outcome::new(),
        })
    }

    /// Lets the next thing happen; false if there is none.
    fn advance(&mut self) -> Result<bool, Error> {
        let (station, departure) = self.departures.least();
        let stay = self.stays.peek().map_or(f64::INFINITY, |stay| stay.until);
        let step = self.script.last().map_or(f64::INFINITY, |&(at, _)| at);
        let first = departure.min(self.arrival.at).min(self.next_sample);
        let first = first.min(step).min(stay);
        let over = self.arrival.at.is_infinite() && departure.is_infinite();
        if over && self.next_sample.is_infinite() {
            return Ok(false);
        }
        self.outcome.area += (first - self.now) * self.present as f64;
        self.now = first;
        if first == self.arrival.at {
            self.arrive()?;
        } else if first == departure {
            self.depart(station)?;
        } else if first == self.next_sample {
            self.sample();
        } else if first == step {
            if let Some((_, step)) = self.script.pop() {
                self.perform(step)?;
            }
        } else if let Some(stay) = self.stays.pop() {
            self.stations[stay.station].release(self.now, stay.cores);
            self.reschedule(stay.station);
            self.outcome.completed += 1;
            self.leave(stay.station, stay.visit, End::Orderly)?;
        }
        Ok(true)
    }

    fn arrive(&mut self) -> Result<(), Error> {
        let arrival = self.arrival;
        self.arrival = self.source.next_arrival();
        if self.arrival.at > self.horizon {
            self.arrival.at = f64::INFINITY;
        }
        self.outcome.arrived += 1;
        let node = arrival.client % self.scenario.nodes;
        let request = request(&arrival, self.scenario.nodes);
        let Some(server) = self.nodes[node as usize].connect(&request)? else {
            self.outcome.unserved += 1;
            return Ok(());
        };
        self.meet(&arrival, server);
        let visit = Visit {
            since: self.now,
            node,
        };
        let station = &mut self.stations[server];
        let end = match station.health {
            Health::Up if station.connections() < self.scenario.limit => None,
            Health::Up => Some(End::Orderly),
            Health::Refusing => Some(End::Reset),
            Health::Silent => Some(End::Silence),
        };
        if let Some(end) = end {
            match end {
                End::Orderly => self.outcome.turned_away += 1,
                End::Reset | End::Silence => self.outcome.unanswered += 1,
            }
            let at = self.node_time();
            return self.nodes[node as usize].ended(server, at, end);
        }
        match arrival.demand {
            Demand::Work(work) => station.arrive(self.now, work, visit),
            Demand::Stay { secs, cores } => {
                station.hold(self.now, cores);
                self.stays.push(Stay {
                    until: self.now + secs,
                    station: server,
                    cores,
                    visit,
                });
            }
        }
        self.present += 1;
        self.reschedule(server);
        Ok(())
    }

    fn depart(&mut self, server: usize) -> Result<(), Error> {
        let Some(visit) = self.stations[server].depart(self.now) else {
            return Ok(());
        };
        self.reschedule(server);
        let latency = self.now - visit.since;
        if self.is_measured(visit.since) {
            self.outcome.latency.record(latency);
        }
        self.outcome.completed += 1;
        let at = self.node_time();
        self.nodes[visit.node as usize].measured(server, latency, at)?;
        self.leave(server, visit, End::Orderly)
    }

    /// The connection is over, one way or another.
    fn leave(&mut self, server: usize, visit: Visit, end: End) -> Result<(), Error> {
        self.present -= 1;
        self.outcome.sojourn += self.now - visit.since;
        let at = self.node_time();
        self.nodes[visit.node as usize].ended(server, at, end)
    }

    /// The nodes' clocks started before the simulation.
    fn node_time(&self) -> f64 {
        self.now + PAST
    }

    fn perform(&mut self, step: Step) -> Result<(), Error> {
        let server = step.server;
        match step.action {
            Action::List(weight) => {
                self.weights[server] = weight;
                self.kin.changes += 1;
                self.nodes
                    .iter_mut()
                    .try_for_each(|node| node.list(server, weight))
            }
            Action::Unlist => {
                self.weights[server] = 0;
                self.kin.changes += 1;
                self.nodes
                    .iter_mut()
                    .try_for_each(|node| node.unlist(server))
            }
            Action::Weight(weight) => {
                self.weights[server] = weight;
                self.kin.changes += 1;
                self.nodes
                    .iter_mut()
                    .try_for_each(|node| node.set_weight(server, weight))
            }
            Action::Speed(speed) => {
                self.stations[server].set_speed(self.now, speed);
                self.reschedule(server);
                Ok(())
            }
            Action::Health(health) => {
                self.stations[server].health = health;
                match health {
                    Health::Up => Ok(()),
                    Health::Refusing => self.crash(server, End::Reset),
                    Health::Silent => self.crash(server, End::Silence),
                }
            }
        }
    }

    /// All connections of a server are lost.
    fn crash(&mut self, server: usize, end: End) -> Result<(), Error> {
        let mut lost = self.stations[server].drop_all(self.now);
        self.stays.retain(|stay| {
            let stays = stay.station != server;
            if !stays {
                lost.push(stay.visit);
            }
            stays
        });
        self.reschedule(server);
        for visit in lost {
            self.outcome.broken += 1;
            self.leave(server, visit, end)?;
        }
        Ok(())
    }

    fn reschedule(&mut self, server: usize) {
        let next = self.stations[server].next_departure();
        self.departures.set(server, next);
    }

    fn sample(&mut self) {
        let loads = self
            .stations
            .iter()
            .zip(&self.weights)
            .filter(|&(_, &weight)| weight > 0)
            .map(|(station, _)| station.load());
        let bin = self.samples as usize * BINS / SAMPLES as usize;
        if let Some(bin) = self.outcome.bins.get_mut(bin) {
            bin.sample(loads.clone());
        }
        if self.now >= WARM_UP * self.horizon {
            self.outcome.loads.sample(loads);
        }
        self.samples += 1;
        self.next_sample = if self.samples < SAMPLES {
            f64::from(self.samples + 1) * self.horizon / f64::from(SAMPLES)
        } else {
            f64::INFINITY
        };
    }

    /// Notes whether `arrival` meets the server that its kin met last.
    fn meet(&mut self, arrival: &Arrival, server: usize) {
        let name = match self.scenario.kinship {
            Kinship::Client => arrival.client,
            Kinship::Destination => arrival.destination,
        };
        let (server_name, changes) = (u32::try_from(server).unwrap_or(u32::MAX), self.kin.changes);
        let met = self.kin.last[name as usize].replace((server_name, changes));
        let Some((previous, changes_then)) = met else {
            return;
        };
        // A server that may get no connections parts all its clients, whatever the scheduler.
        if !self.is_measured(self.now) || self.weights[previous as usize] == 0 {
            return;
        }
        let pairs = if changes_then == changes {
            &mut self.outcome.undisturbed
        } else {
            &mut self.outcome.across_change
        };
        pairs.count(previous != server_name);
    }

    fn is_measured(&self, at: f64) -> bool {
        at >= WARM_UP * self.horizon
    }

    fn finish(mut self) -> Outcome {
        for stay in &self.stays {
            self.outcome.staying += 1;
            self.outcome.sojourn += self.now - stay.visit.since;
        }
        self.outcome
    }
}

/// Lets `node` have had connections before the simulation starts, the last of which it remembers.
///
/// It began at a moment of its own. Nodes that all began at once would choose the same servers in
/// step: with round robin, and with the others as long as counts are equal; and those that count ended
/// connections would do so again each time that those are forgotten.
///
/// A run that is shorter than nodes remember has a past that is shorter, too.
fn give_past(
    node: &mut Node,
    number: u32,
    scenario: &Scenario,
    horizon: f64,
    seed: u64,
) -> Result<(), Error> {
    let mut random = Random::new(seed, 0x1_0000_0000 + u64::from(number));
    let clients = scenario.workload.clients / scenario.nodes;
    let pause = f64::from(scenario.nodes) / scenario.rate();
    let mut at = -AFTER_END.min(horizon) * (1.0 + random.unit());
    while at < 0.0 {
        let arrival = Arrival {
            at,
            client: number + scenario.nodes * random.below(clients),
            client_port: 40_000,
            destination: random.below(scenario.workload.destinations),
            demand: Demand::Work(0.0),
        };
        node.remember(&request(&arrival, scenario.nodes))?;
        at += random.exponential(pause);
    }
    Ok(())
}

fn request(arrival: &Arrival, nodes: u32) -> Request {
    Request {
        source: client_address(arrival.client, nodes),
        source_port: arrival.client_port,
        destination: destination_address(arrival.destination),
        destination_port: 80,
        at: duration(arrival.at + PAST),
    }
}

/// Who met whom last.
struct Kin {
    /// By client or destination: the server, and how many changes there had been.
    last: Vec<Option<(u32, u32)>>,
    /// How often the list of servers changed.
    changes: u32,
}

impl Kin {
    fn new(names: u32) -> Self {
        Self {
            last: vec![None; names as usize],
            changes: 0,
        }
    }
}

/// A connection that merely stays.
#[derive(Clone, Copy, Debug)]
struct Stay {
    until: f64,
    station: usize,
    cores: f64,
    visit: Visit,
}

impl Ord for Stay {
    /// The heap's top ends first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.until.total_cmp(&self.until)
    }
}

impl PartialOrd for Stay {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Stay {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Stay {}

#[cfg(test)]
mod tests;
