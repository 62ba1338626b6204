//! A scenario: servers, nodes, a workload, and a script of changes.

use super::station::{Discipline, Health};
use super::workload::Workload;

/// The configuration of a server at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ServerKind {
    /// How many connections it serves at full speed at the same time.
    pub(crate) cores: u32,
    /// Its weight; `None` if a step of the script adds it to the lists later.
    pub(crate) weight: Option<u32>,
}

/// A change of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// Add it to every node's list with this weight.
    List(u32),
    /// Remove it from every node's list. It finishes its connections.
    Unlist,
    /// Set its weight on every node.
    Weight(u32),
    /// Set its weight on the node of this number.
    WeightOn(usize, u32),
    /// Set its speed, relative to that at the start.
    Speed(f64),
    /// Set whether it answers. If it stops answering, its connections are lost.
    Health(Health),
}

/// A change of a server at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// The time as a share of the run.
    pub(crate) share: f64,
    /// Seconds to add to it.
    pub(crate) plus: f64,
    /// The number of the server.
    pub(crate) server: usize,
    pub(crate) action: Action,
}

impl Step {
    pub(crate) fn new(share: f64, plus: f64, server: usize, action: Action) -> Self {
        Self {
            share,
            plus,
            server,
            action,
        }
    }
}

/// Which connections should be sent to the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// Those of the same client: sessions.
    Client,
    /// Those to the same frontend address: the servers are caches.
    Destination,
}

/// A scenario in which schedulers are compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// A description in one sentence, without the full stop.
    pub(crate) about: &'static str,
    /// The number of nodes, each with its own balancer. Clients are spread evenly over them.
    pub(crate) nodes: u32,
    pub(crate) servers: Vec<ServerKind>,
    pub(crate) discipline: Discipline,
    /// The number of connections at which a server starts to reject new ones.
    pub(crate) limit: u32,
    /// Work that arrives, as a share of the capacity of the servers listed at the start.
    pub(crate) load: f64,
    pub(crate) workload: Workload,
    pub(crate) script: Vec<Step>,
    pub(crate) affinity: Affinity,
}

impl Scenario {
    /// Returns the servers that are listed at the start.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &ServerKind> {
        self.servers.iter().filter(|kind| kind.weight.is_some())
    }

    /// Adds a step after this share of the run.
    pub(crate) fn step(&mut self, share: f64, server: usize, action: Action) {
        self.script.push(Step::new(share, 0.0, server, action));
    }

    /// Returns the number of new connections per second.
    pub(crate) fn rate(&self) -> f64 {
        let cores: u32 = self.listed().map(|kind| kind.cores).sum();
        self.load * f64::from(cores) / self.workload.mean_work()
    }
}
