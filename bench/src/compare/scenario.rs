//! A situation to compare schedulers in: servers, nodes, a workload, and what goes wrong meanwhile.

use super::station::{Discipline, Health};
use super::workload::Workload;

/// A server at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ServerKind {
    /// How many connections it works on at full speed.
    pub(crate) cores: u32,
    /// Its weight; nothing: it is not listed until the script says so.
    pub(crate) weight: Option<u32>,
}

/// Something that happens to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// Put into every node's list with this weight.
    List(u32),
    /// Taken from every node's list. It finishes its connections.
    Unlist,
    /// Given this weight on every node.
    Weight(u32),
    /// From now on so much as fast as at first.
    Speed(f64),
    /// From now on it answers, or does not; its connections are lost when it stops to.
    Health(Health),
}

/// When and to whom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// Part of the whole time.
    pub(crate) share: f64,
    /// Seconds after that.
    pub(crate) plus: f64,
    /// Number of the server.
    pub(crate) server: usize,
    pub(crate) action: Action,
}

/// Which connections would like to meet the same server again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kinship {
    /// Those of one client.
    Client,
    /// Those to one destination address: the servers are caches.
    Destination,
}

/// A situation to compare schedulers in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What it is, in one sentence.
    pub(crate) about: &'static str,
    /// Each balances alone; clients are spread over them evenly.
    pub(crate) nodes: u32,
    pub(crate) servers: Vec<ServerKind>,
    pub(crate) discipline: Discipline,
    /// Connections at which a server turns away further ones.
    pub(crate) limit: u32,
    /// Arriving work, as a share of what the servers listed at the start can do.
    pub(crate) load: f64,
    pub(crate) workload: Workload,
    pub(crate) script: Vec<Step>,
    pub(crate) kinship: Kinship,
}

impl Scenario {
    /// Connections a second.
    pub(crate) fn rate(&self) -> f64 {
        let listed = self.servers.iter().filter(|kind| kind.weight.is_some());
        let cores: u32 = listed.map(|kind| kind.cores).sum();
        self.load * f64::from(cores) / self.workload.mean_work()
    }
}
