//! The simulation: processes events in the order of time.
//!
//! ```text
//!  Source ──arrival──▶ Node ──connect──▶ Balancer          (one per node)
//!                       ▲                    │ number of the server
//!                       │ end                ▼
//!                       └──────────────── Station          (shared by all nodes)
//!                                            │
//!                                         Outcome
//! ```
//!
//! The simulation reads no clock, and all random numbers come from the seed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use schedulers::{Balancer, Error, Implementation, Options, Registry, Request};

use super::node::{AFTER_END, End, Node, duration};
use super::outcome::{BINS, Outcome};
use super::scenario::{Action, Affinity, Scenario, Step};
use super::station::{Connection, Health, Station};
use super::tournament::Tournament;
use super::workload::{Arrival, Demand, Source, client_address, destination_address};
use crate::random::Random;

/// The share of the run that is not measured, because servers start empty.
const WARM_UP: f64 = 0.1;
/// How long before the simulation the clocks of the nodes start, in seconds. In this time the nodes
/// make connections and forget the first ones, so each node starts with a typical history.
const PAST: f64 = 2.0 * AFTER_END;
/// The number of samples of the loads per run.
const SAMPLES: u32 = 2_000;

/// Simulates `scenario` with this scheduler until about `connections` connections have arrived.
///
/// # Errors
/// `registry` has no such scheduler, or the scheduler picked a server that does not exist.
pub(crate) fn run(
    scenario: &Scenario,
    registry: &Registry,
    scheduler: &str,
    connections: u64,
    seed: u64,
) -> Result<Outcome, Error> {
    let horizon = connections as f64 / scenario.rate();
    let mut simulation = Simulation::new(scenario, registry, scheduler, horizon, seed)?;
    while simulation.advance()? {}
    Ok(simulation.finish())
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    horizon: f64,
    now: f64,
    nodes: Vec<Node>,
    stations: Vec<Station>,
    /// The time of each station's next departure.
    departures: Tournament,
    idle: BinaryHeap<IdleConnection>,
    source: Source,
    /// The next connection, at an infinite time after the end of the run.
    arrival: Arrival,
    /// The remaining steps, the next one last.
    script: Vec<(f64, Step)>,
    next_sample: f64,
    samples: u32,
    /// The weight of each server; 0 if it may get no connections.
    weights: Vec<u32>,
    last_servers: LastServers,
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
                // Each node has its own seed: with a common one, all nodes would draw the same servers.
                // The seeds of two runs differ by 1, so there is room for 65,536 nodes between them.
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
            add_past(node, number, scenario, horizon, seed)?;
        }
        let station =
            |kind: &super::scenario::ServerKind| Station::new(scenario.discipline, kind.cores);
        let steps = scenario.script.iter();
        let script = steps.map(|&step| (step.share * horizon + step.plus, step));
        let mut script: Vec<(f64, Step)> = script.collect();
        script.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let weights = scenario.servers.iter().map(|kind| kind.weight);
        let mut source = Source::new(scenario.workload, scenario.rate(), seed);
        let arrival = source.next_arrival();
        Ok(Self {
            scenario,
            horizon,
            now: 0.0,
            nodes,
            stations: scenario.servers.iter().map(station).collect(),
            departures: Tournament::new(servers),
            idle: BinaryHeap::new(),
            source,
            arrival,
            script,
            next_sample: horizon / f64::from(SAMPLES),
            samples: 0,
            weights: weights.map(|weight| weight.unwrap_or(0)).collect(),
            last_servers: LastServers::new(match scenario.affinity {
                Affinity::Client => scenario.workload.clients,
                Affinity::Destination => scenario.workload.destinations,
            }),
            present: 0,
            outcome: Outcome::new(),
        })
    }

    /// Processes the next event; returns false if there is none.
    fn advance(&mut self) -> Result<bool, Error> {
        let (station, departure) = self.departures.least();
        let idle = self.idle.peek().map_or(f64::INFINITY, |idle| idle.until);
        let step = self.script.last().map_or(f64::INFINITY, |&(at, _)| at);
        let first = departure.min(self.arrival.at).min(self.next_sample);
        let first = first.min(step).min(idle);
        let over = self.arrival.at.is_infinite() && departure.is_infinite();
        if over && self.next_sample.is_infinite() {
            return Ok(false);
        }
        self.outcome.area += (first - self.now) * self.present as f64;
        self.now = first;
        // `first` is a copy of one of these times, so the comparison is exact.
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
        } else if let Some(idle) = self.idle.pop() {
            self.stations[idle.station].remove_idle(self.now, idle.cores);
            self.reschedule(idle.station);
            self.outcome.fates.completed += 1;
            self.leave(idle.station, idle.connection, End::Orderly)?;
        }
        Ok(true)
    }

    fn arrive(&mut self) -> Result<(), Error> {
        let arrival = self.arrival;
        self.arrival = self.source.next_arrival();
        if self.arrival.at > self.horizon {
            self.arrival.at = f64::INFINITY;
        }
        self.outcome.fates.arrived += 1;
        let node = arrival.client % self.scenario.nodes;
        let request = request(&arrival, self.scenario.nodes);
        let Some(server) = self.nodes[node as usize].connect(&request)? else {
            self.outcome.fates.unserved += 1;
            return Ok(());
        };
        self.count_pair(&arrival, server);
        let connection = Connection {
            since: self.now,
            node,
        };
        let station = &mut self.stations[server];
        let end = match station.health {
            Health::Up if station.connections() < self.scenario.limit => None,
            // A full server accepts and closes at once: the node sees a FIN, not a RST.
            Health::Up => Some(End::Orderly),
            Health::Refusing => Some(End::Reset),
            Health::Silent => Some(End::Silence),
        };
        if let Some(end) = end {
            match end {
                End::Orderly => self.outcome.fates.rejected += 1,
                End::Reset | End::Silence => self.outcome.fates.unanswered += 1,
            }
            let at = self.node_time();
            return self.nodes[node as usize].ended(server, at, end);
        }
        match arrival.demand {
            Demand::Work(work) => station.arrive(self.now, work, connection),
            Demand::Idle { secs, cores } => {
                station.add_idle(self.now, cores);
                self.idle.push(IdleConnection {
                    until: self.now + secs,
                    station: server,
                    cores,
                    connection,
                });
            }
        }
        self.present += 1;
        self.reschedule(server);
        Ok(())
    }

    fn depart(&mut self, server: usize) -> Result<(), Error> {
        let Some(connection) = self.stations[server].depart(self.now) else {
            return Ok(());
        };
        self.reschedule(server);
        let latency = self.now - connection.since;
        if self.is_measured(connection.since) {
            self.outcome.latency.record(latency);
        }
        self.outcome.fates.completed += 1;
        let at = self.node_time();
        self.nodes[connection.node as usize].measured(server, latency, at)?;
        self.leave(server, connection, End::Orderly)
    }

    /// Counts the end of a connection, whether it was complete or lost.
    fn leave(&mut self, server: usize, connection: Connection, end: End) -> Result<(), Error> {
        self.present -= 1;
        self.outcome.sojourn += self.now - connection.since;
        let at = self.node_time();
        self.nodes[connection.node as usize].ended(server, at, end)
    }

    /// Returns the time on the clocks of the nodes, which start before the simulation.
    fn node_time(&self) -> f64 {
        self.now + PAST
    }

    fn perform(&mut self, step: Step) -> Result<(), Error> {
        let server = step.server;
        match step.action {
            Action::List(weight) => self.change(server, weight, |node| node.list(server, weight)),
            Action::Unlist => self.change(server, 0, |node| node.unlist(server)),
            Action::Weight(to) => self.change(server, to, |node| node.set_weight(server, to)),
            Action::WeightOn(node, weight) => self.nodes[node].set_weight(server, weight),
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

    /// Changes a server on every node.
    fn change(
        &mut self,
        server: usize,
        weight: u32,
        change: impl Fn(&mut Node) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.weights[server] = weight;
        self.last_servers.changes += 1;
        self.nodes.iter_mut().try_for_each(change)
    }

    /// Drops all connections of a server.
    fn crash(&mut self, server: usize, end: End) -> Result<(), Error> {
        let mut lost = self.stations[server].drop_all(self.now);
        self.idle.retain(|idle| {
            let is_elsewhere = idle.station != server;
            if !is_elsewhere {
                lost.push(idle.connection);
            }
            is_elsewhere
        });
        self.reschedule(server);
        for connection in lost {
            self.outcome.fates.aborted += 1;
            self.leave(server, connection, end)?;
        }
        Ok(())
    }

    fn reschedule(&mut self, server: usize) {
        let next = self.stations[server].next_departure();
        self.departures.set(server, next);
    }

    fn sample(&mut self) {
        let stations = self.stations.iter().zip(&self.weights);
        let listed = stations.filter(|&(_, &weight)| weight > 0);
        let loads = listed.map(|(station, _)| station.load());
        let bin = self.samples as usize * BINS / SAMPLES as usize;
        if let Some(bin) = self.outcome.bins.get_mut(bin) {
            bin.sample(loads.clone());
        }
        if self.now >= WARM_UP * self.horizon {
            self.outcome.loads.sample(loads);
        }
        self.samples += 1;
        self.next_sample = match self.samples < SAMPLES {
            true => f64::from(self.samples + 1) * self.horizon / f64::from(SAMPLES),
            false => f64::INFINITY,
        };
    }

    /// Counts the connection and the previous one of its client as a pair, and whether they have the
    /// same server. With [`Affinity::Destination`], the previous one to the same address counts.
    fn count_pair(&mut self, arrival: &Arrival, server: usize) {
        let name = match self.scenario.affinity {
            Affinity::Client => arrival.client,
            Affinity::Destination => arrival.destination,
        };
        let (server_name, changes) = (
            u32::try_from(server).unwrap_or(u32::MAX),
            self.last_servers.changes,
        );
        let last = self.last_servers.last[name as usize].replace((server_name, changes));
        let Some((previous, changes_then)) = last else {
            return;
        };
        // If the previous server may get no connections, the client must move with every scheduler.
        if !self.is_measured(self.now) || self.weights[previous as usize] == 0 {
            return;
        }
        let pairs = if changes_then == changes {
            &mut self.outcome.undisturbed
        } else {
            &mut self.outcome.after_change
        };
        pairs.count(previous != server_name);
    }

    fn is_measured(&self, at: f64) -> bool {
        at >= WARM_UP * self.horizon
    }

    fn finish(mut self) -> Outcome {
        for idle in &self.idle {
            self.outcome.fates.still_open += 1;
            self.outcome.sojourn += self.now - idle.connection.since;
        }
        self.outcome
    }
}

/// Adds connections of `node` that ended before the simulation starts. The node still counts the
/// latest of them.
///
/// Each node's past starts at a random time. If all started at once, they would pick in step, the same
/// server at the same time: with round robin for the whole run, with other schedulers until the counts of
/// the nodes differ. Nodes that forget the connections of this past would be in step once more.
///
/// If the run is shorter than the time after which nodes forget, the past is shorter, too.
fn add_past(
    node: &mut Node,
    number: u32,
    scenario: &Scenario,
    horizon: f64,
    seed: u64,
) -> Result<(), Error> {
    // Streams apart from those of `Source`, whose connections stay the same whatever the past
    // draws.
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

/// The server of the last connection of each client, or to each frontend address.
struct LastServers {
    /// The server, and the value of `changes` when it was picked.
    last: Vec<Option<(u32, u32)>>,
    /// How many times the list of servers or a weight has changed.
    changes: u32,
}

impl LastServers {
    fn new(names: u32) -> Self {
        Self {
            last: vec![None; names as usize],
            changes: 0,
        }
    }
}

/// A connection that stays open and does little.
#[derive(Clone, Copy, Debug)]
struct IdleConnection {
    until: f64,
    station: usize,
    cores: f64,
    connection: Connection,
}

impl Ord for IdleConnection {
    /// `BinaryHeap` returns the greatest first, so the connection that ends first is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.until.total_cmp(&self.until)
    }
}

impl PartialOrd for IdleConnection {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for IdleConnection {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for IdleConnection {}

#[cfg(test)]
mod tests;
