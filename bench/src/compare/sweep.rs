//! Compares schedulers that count connections with others, by number of nodes and of servers.
//!
//! Every node counts only its own connections. A single node sees all of them, so its result is the
//! best that counting can achieve.

use serde::Serialize;

use super::cells::Measured;
use super::results::Row;
use super::scenario::Scenario;
use super::{catalogue, outside};

/// The numbers of nodes.
pub(crate) const NODES: [u32; 5] = [1, 4, 16, 64, 256];
/// The numbers of servers.
pub(crate) const SERVERS: [usize; 4] = [4, 16, 64, 256];

/// A pair of schedulers to compare, and the servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Question {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The scheduler that does not count.
    pub(crate) plain: &'static str,
    /// The scheduler that counts.
    pub(crate) counting: &'static str,
    #[serde(skip)]
    scenario: fn(u32, usize) -> Scenario,
}

/// All pairs.
pub(crate) const QUESTIONS: [Question; 5] = [
    Question {
        name: "equal",
        about: "equal servers",
        plain: "rr",
        counting: "lc",
        scenario: catalogue::equal,
    },
    Question {
        name: "weighted",
        about: "servers of 2, 4 and 8 cores, weights in proportion",
        plain: "wrr",
        counting: "wlc",
        scenario: weighted,
    },
    Question {
        name: "slow",
        about: "one server in four at half speed, with the same weight",
        plain: "rr",
        counting: "lc",
        scenario: slow,
    },
    Question {
        name: "slots",
        about: "equal servers, with nftables",
        plain: outside::SLOTS,
        counting: "lc",
        scenario: catalogue::equal,
    },
    Question {
        name: "weighted-slots",
        about: "servers of 2, 4 and 8 cores, with nftables",
        plain: outside::SLOTS,
        counting: "wlc",
        scenario: weighted,
    },
];

impl Question {
    /// Returns the scenario with these numbers of nodes and servers.
    pub(crate) fn scenario(&self, nodes: u32, servers: usize) -> Scenario {
        let mut scenario = (self.scenario)(nodes, servers);
        scenario.name = "sweep";
        scenario.about = self.about;
        scenario
    }
}

fn weighted(nodes: u32, servers: usize) -> Scenario {
    let mut scenario = catalogue::equal(nodes, servers);
    catalogue::weigh(&mut scenario);
    scenario
}

fn slow(nodes: u32, servers: usize) -> Scenario {
    // With connections spread evenly, the load of the slow servers is 90 %.
    catalogue::with_slow_servers(catalogue::equal(nodes, servers), 0.45, 0.0)
}

/// The results for a pair of schedulers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sweep {
    #[serde(flatten)]
    pub(crate) question: Question,
    pub(crate) points: Vec<Point>,
}

/// The results for one combination of nodes and servers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Point {
    pub(crate) nodes: u32,
    pub(crate) servers: usize,
    /// Mean number of connections of a node to a server, with the scheduler `plain`.
    pub(crate) connections_per_node_and_server: f64,
    pub(crate) plain: Row,
    pub(crate) counting: Row,
}

impl Point {
    pub(crate) fn new(
        question: Question,
        scenario: &Scenario,
        plain: &Measured,
        counting: &Measured,
    ) -> Self {
        let servers = scenario.servers.len();
        // Little's law: the mean number of connections is the arrival rate times the mean latency.
        let mean_connections = scenario.rate() * plain.outcome.latency.mean();
        let places = f64::from(scenario.nodes) * servers as f64;
        Self {
            nodes: scenario.nodes,
            servers,
            connections_per_node_and_server: mean_connections / places,
            plain: Row::new(question.plain, plain),
            counting: Row::new(question.counting, counting),
        }
    }

    /// Returns the 99th percentile of the counting scheduler, divided by that of the plain one.
    pub(crate) fn ratio(&self) -> f64 {
        self.counting.latency_ms.p99 / self.plain.latency_ms.p99
    }
}

impl Sweep {
    /// Returns the point with these numbers of nodes and servers, if it was simulated.
    pub(crate) fn point(&self, nodes: u32, servers: usize) -> Option<&Point> {
        let mut points = self.points.iter();
        points.find(|point| (point.nodes, point.servers) == (nodes, servers))
    }

    /// Returns the 99th percentile of the counting scheduler at `point`, divided by that with one node.
    pub(crate) fn against_one(&self, point: &Point) -> Option<f64> {
        let one = self.point(1, point.servers)?;
        Some(point.counting.latency_ms.p99 / one.counting.latency_ms.p99)
    }
}
