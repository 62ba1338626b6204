//! All scenarios.
//!
//! Unless a scenario says otherwise, the servers have 64 cores in total, a connection takes one second of
//! one core, and a server's weight is its number of cores.

use super::scenario::{Action, Affinity, Scenario, ServerKind, Step};
use super::station::{Discipline, Health};
use super::workload::{Arrivals, IdleConnections, Workload};
use crate::random::Duration;

/// The usual number of servers.
const SERVERS: usize = 16;
/// The usual number of cores of each server.
const CORES: u32 = 4;
/// The mean work per connection, in seconds of one core.
const WORK: f64 = 1.0;
/// Seconds until a dead server is removed from the lists: three probes, ten seconds apart. These are
/// the defaults of a Kubernetes readiness probe.
const DETECTION: f64 = 30.0;

/// Seconds until a new server has its full weight, and its full speed.
const SLOW_START: f64 = 60.0;
/// The scenarios of slow start: nodes, and the weights of a new server in their order. Others have the last one.
const STARTS: [(&str, u32, &[u32]); 12] = [
    ("start-4", 4, &[8]),
    ("start-4-late", 4, &[1, 8]),
    ("start-4-double", 4, &[1, 2, 4, 8]),
    ("start-4-linear", 4, &[2, 4, 6, 8]),
    ("start-64", 64, &[8]),
    ("start-64-late", 64, &[1, 8]),
    ("start-64-double", 64, &[1, 2, 4, 8]),
    ("start-64-linear", 64, &[2, 4, 6, 8]),
    ("start-512", 512, &[8]),
    ("start-512-late", 512, &[1, 8]),
    ("start-512-double", 512, &[1, 2, 4, 8]),
    ("start-512-linear", 512, &[2, 4, 6, 8]),
];

/// Returns all scenarios, the simplest one first.
pub(crate) fn all() -> Vec<Scenario> {
    let mut all = vec![
        steady(),
        bursty(),
        heavy_tail(),
        long_lived(),
        weighted(),
        slow(),
        failing("refusing", Health::Refusing),
        failing("silent", Health::Silent),
        rolling(),
        leaving(),
        many("many-nodes", "as steady, but with 64 nodes", steady()),
        many("many-rolling", "as rolling, but with 64 nodes", rolling()),
        caches(),
        quiet(),
    ];
    all.extend(STARTS.map(slow_start));
    all
}

/// Returns a scenario of `servers` equal servers and `nodes` nodes without changes.
pub(crate) fn equal(nodes: u32, servers: usize) -> Scenario {
    Scenario {
        name: "steady",
        about: "16 equal servers, one node, Poisson arrivals, exponential work",
        nodes,
        servers: vec![listed(CORES); servers],
        discipline: Discipline::Sharing,
        limit: 128,
        load: 0.75,
        workload: Workload {
            arrivals: Arrivals::Poisson,
            work: Duration::Exponential { mean: WORK },
            idle: None,
            clients: 4_096,
            client_skew: 0.0,
            destinations: 1,
            destination_skew: 0.0,
        },
        script: Vec::new(),
        affinity: Affinity::Client,
    }
}

fn steady() -> Scenario {
    equal(1, SERVERS)
}

fn bursty() -> Scenario {
    let mut scenario = steady();
    scenario.name = "bursty";
    scenario.about = "bursts of 20 s with 8 % more work than the servers can do, and 40 s of low load between them";
    scenario.load = 0.6;
    scenario.workload.arrivals = Arrivals::Bursty {
        factor: 1.8,
        burst: 20.0,
        quiet: 40.0,
    };
    scenario
}

fn heavy_tail() -> Scenario {
    let mut scenario = steady();
    scenario.name = "heavy-tail";
    scenario.about = "work with a Pareto distribution (shape 1.3, up to 200 s); \
                      a server serves 4 connections at a time, the others queue";
    scenario.load = 0.6;
    scenario.discipline = Discipline::Queueing;
    scenario.workload.work = Duration::Pareto {
        shape: 1.3,
        shortest: 0.268,
        longest: 200.0,
    };
    scenario
}

fn long_lived() -> Scenario {
    let mut scenario = steady();
    scenario.name = "long-lived";
    scenario.about = "one connection in ten stays open for ten minutes (log-normal) and does little; \
                      4 servers are added at half-time";
    scenario.load = 0.6;
    scenario.limit = 1_024;
    scenario.workload.idle = Some(IdleConnections {
        share: 0.1,
        duration: Duration::LogNormal {
            mean: 600.0,
            sigma: 1.0,
        },
        cores: 0.005,
    });
    for _ in 0..4 {
        scenario.step(0.5, scenario.servers.len(), Action::List(CORES));
        scenario.servers.push(spare());
    }
    scenario
}

fn weighted() -> Scenario {
    let mut scenario = steady();
    scenario.name = "weighted";
    scenario.about = "8 servers of 2 cores, 4 of 4 and 4 of 8, weights in proportion";
    weigh(&mut scenario);
    scenario
}

/// Gives the servers different numbers of cores, and weights in proportion.
pub(crate) fn weigh(scenario: &mut Scenario) {
    let cores = [2, 4, 2, 8].into_iter().cycle();
    for (server, cores) in scenario.servers.iter_mut().zip(cores) {
        *server = listed(cores);
    }
}

fn slow() -> Scenario {
    let mut scenario = with_slow_servers(steady(), 0.6, 0.3);
    scenario.name = "slow";
    scenario.about = "4 of 16 servers at half speed from 30 % to 80 % of the time; \
                      their weights do not change";
    for server in (2..SERVERS).step_by(4) {
        scenario.step(0.8, server, Action::Speed(1.0));
    }
    scenario
}

/// Sets the load, and halves the speed of one server in four from this share of the run on.
pub(crate) fn with_slow_servers(mut scenario: Scenario, load: f64, from: f64) -> Scenario {
    scenario.load = load;
    for server in (2..scenario.servers.len()).step_by(4) {
        scenario.step(from, server, Action::Speed(0.5));
    }
    scenario
}

fn failing(name: &'static str, how: Health) -> Scenario {
    let mut scenario = steady();
    scenario.name = name;
    scenario.about = "a server goes down and its machine is silent or refuses connections, as the name says; removed \
                      after 30 s, added again later; twice";
    scenario.load = 0.6;
    for (server, down, up) in [(3, 0.2, 0.45), (11, 0.6, 0.85)] {
        let step = |share, plus, action| Step::new(share, plus, server, action);
        scenario.script.extend([
            step(down, 0.0, Action::Health(how)),
            step(down, DETECTION, Action::Unlist),
            // The delay puts this step after the removal, even in a short run.
            step(up, DETECTION, Action::Health(Health::Up)),
            step(up, DETECTION, Action::List(CORES)),
        ]);
    }
    scenario
}

fn rolling() -> Scenario {
    let mut scenario = steady();
    scenario.name = "rolling";
    scenario.about = "every server is replaced, one after the other: a new one is listed, the old one drained for \
                      30 s and removed";
    for old in 0..SERVERS {
        let share = 0.2 + 0.6 * old as f64 / SERVERS as f64;
        let step = |server, plus, action| Step::new(share, plus, server, action);
        scenario.script.extend([
            step(SERVERS + old, 0.0, Action::List(CORES)),
            step(old, 1.0, Action::Weight(0)),
            step(old, 30.0, Action::Unlist),
        ]);
    }
    scenario.servers.resize(2 * SERVERS, spare());
    scenario
}

fn leaving() -> Scenario {
    let mut scenario = steady();
    scenario.name = "leaving";
    scenario.about = "3 of 16 servers are removed, one after the other";
    scenario.load = 0.6;
    for (server, share) in [(3, 0.4), (8, 0.6), (13, 0.8)] {
        scenario.step(share, server, Action::Unlist);
    }
    scenario
}

fn many(name: &'static str, about: &'static str, scenario: Scenario) -> Scenario {
    Scenario {
        name,
        about,
        nodes: 64,
        ..scenario
    }
}

fn caches() -> Scenario {
    let mut scenario = steady();
    scenario.name = "caches";
    scenario.about = "a firewall mark for 4,096 frontend addresses of unequal popularity; \
                      servers are caches; one is removed";
    scenario.load = 0.5;
    scenario.affinity = Affinity::Destination;
    scenario.workload.destinations = 4_096;
    scenario.workload.destination_skew = 0.7;
    scenario.step(0.6, 5, Action::Unlist);
    scenario
}

fn quiet() -> Scenario {
    let mut scenario = steady();
    scenario.name = "quiet";
    scenario.about = "3 % load: one server would be enough";
    scenario.load = 0.03;
    scenario
}

fn slow_start((name, nodes, weights): (&'static str, u32, &[u32])) -> Scenario {
    let mut scenario = rolling();
    scenario.name = name;
    scenario.about = "as rolling; a new server works at a quarter of its speed for 30 s, then at half of it for 30 s, \
                      and each node raises its weight in steps";
    scenario.nodes = nodes;
    let full = weights[weights.len() - 1];
    for server in &mut scenario.servers {
        server.weight = server.weight.map(|_| full);
    }
    let is_start = |step: &&mut Step| step.action == Action::List(CORES);
    let mut steps = Vec::new();
    for first in scenario.script.iter_mut().filter(is_start) {
        first.action = Action::List(weights[0]);
        let mut step = |part: f64, action| {
            steps.push(Step::new(
                first.share,
                part * SLOW_START,
                first.server,
                action,
            ));
        };
        for (part, speed) in [(0.0, 0.25), (0.5, 0.5), (1.0, 1.0)] {
            step(part, Action::Speed(speed));
        }
        for (number, &weight) in weights.iter().enumerate().skip(1) {
            for node in 0..nodes as usize {
                // The golden ratio spreads any number of nodes evenly.
                let start = (node as f64 * 0.618_034).fract();
                let part = (number as f64 + start) / weights.len() as f64;
                step(part, Action::WeightOn(node, weight));
            }
        }
    }
    scenario.script.extend(steps);
    scenario
}

fn listed(cores: u32) -> ServerKind {
    ServerKind {
        cores,
        weight: Some(cores),
    }
}

fn spare() -> ServerKind {
    ServerKind {
        cores: CORES,
        weight: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let names: HashSet<&str> = all().iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all().len());
    }

    #[test]
    fn mean_work_is_one_second() {
        for scenario in all() {
            let mean = scenario.workload.work.mean();
            assert!((mean - WORK).abs() < 0.01, "{}: {mean}", scenario.name);
        }
    }

    #[test]
    fn the_listed_servers_have_the_capacity_for_the_load() {
        for scenario in all() {
            assert!(scenario.load < 0.9, "{}", scenario.name);
            let cores: u32 = scenario.listed().map(|kind| kind.cores).sum();
            assert_eq!(cores, 64, "{}", scenario.name);
        }
    }
}
