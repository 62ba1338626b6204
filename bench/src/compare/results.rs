//! The results, in milliseconds and shares.

use serde::Serialize;

use super::cells::Measured;
use super::outcome::{Fates, Loads};
use super::scenario::{Action, Scenario};
use super::sweep::Sweep;

/// Smaller shares of lost connections are ignored.
const NEGLIGIBLE_LOSS: f64 = 0.001;

/// All results.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Results {
    pub(crate) seed: u64,
    /// The number of connections per run.
    pub(crate) connections: u64,
    /// The number of runs per scheduler and scenario, each with its own seed.
    pub(crate) repeats: u32,
    /// The number of connections simulated in all runs.
    pub(crate) simulated: u64,
    /// The processor time of all runs, in seconds.
    pub(crate) cpu_secs: f64,
    pub(crate) scenarios: Vec<Chapter>,
    pub(crate) sweeps: Vec<Sweep>,
}

/// The results of one scenario.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Chapter {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) nodes: u32,
    /// The number of servers listed at the start.
    pub(crate) servers: usize,
    pub(crate) load: f64,
    /// The length of a run, in simulated seconds.
    pub(crate) seconds: f64,
    /// The times of all changes on all nodes, in simulated seconds.
    pub(crate) events: Vec<f64>,
    pub(crate) rows: Vec<Row>,
}

impl Chapter {
    pub(crate) fn new(scenario: &Scenario, connections: u64, rows: Vec<Row>) -> Self {
        let seconds = connections as f64 / scenario.rate();
        let script = scenario.script.iter();
        let events = script.filter(|step| !matches!(step.action, Action::WeightOn(..)));
        Self {
            name: scenario.name.to_owned(),
            about: scenario.about.to_owned(),
            nodes: scenario.nodes,
            servers: scenario.listed().count(),
            load: scenario.load,
            seconds,
            events: events
                .map(|step| step.share * seconds + step.plus)
                .collect(),
            rows,
        }
    }

    /// Returns the lowest 99th percentile in milliseconds, among the schedulers that lose about as few
    /// connections as the best one.
    pub(crate) fn lowest_p99(&self) -> f64 {
        let least = self.rows.iter().map(|row| row.lost_share);
        let most_lost = least.fold(f64::INFINITY, f64::min) + NEGLIGIBLE_LOSS;
        let rows = self.rows.iter().filter(|row| row.lost_share <= most_lost);
        rows.map(|row| row.latency_ms.p99)
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the results of this scheduler.
    pub(crate) fn row(&self, scheduler: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.scheduler == scheduler)
    }
}

/// The results of a scheduler in a scenario.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) scheduler: String,
    #[serde(flatten)]
    pub(crate) fates: Fates,
    /// The share of connections that were not served to their end.
    pub(crate) lost_share: f64,
    pub(crate) latency_ms: Latency,
    /// The 99th percentile of the best and of the worst run.
    pub(crate) p99_range_ms: [f64; 2],
    /// The mean coefficient of variation of connections per core.
    pub(crate) spread: Option<f64>,
    /// The mean load of the most loaded server, divided by the mean load.
    pub(crate) peak: Option<f64>,
    /// The mean share of servers with at least one connection.
    pub(crate) busy: Option<f64>,
    /// The share of connections with another server than the client's previous connection, without
    /// a change of the servers between the two.
    pub(crate) moved: Option<f64>,
    /// The same share for pairs with a change between them. Only pairs whose previous server is
    /// still eligible count.
    pub(crate) moved_after_change: Option<f64>,
    /// `peak` over time, in equal steps.
    pub(crate) peak_curve: Vec<Option<f64>>,
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

impl Row {
    pub(crate) fn new(scheduler: &str, measured: &Measured) -> Self {
        let Measured { outcome, p99s, .. } = measured;
        let latency = &outcome.latency;
        Self {
            scheduler: scheduler.to_owned(),
            fates: outcome.fates,
            lost_share: outcome.fates.lost_share(),
            latency_ms: Latency {
                mean: latency.mean() * 1e3,
                p50: latency.quantile(0.5) * 1e3,
                p90: latency.quantile(0.9) * 1e3,
                p99: latency.quantile(0.99) * 1e3,
                p999: latency.quantile(0.999) * 1e3,
            },
            p99_range_ms: [
                p99s.iter().copied().fold(f64::INFINITY, f64::min) * 1e3,
                p99s.iter().copied().fold(0.0, f64::max) * 1e3,
            ],
            spread: outcome.loads.spread(),
            peak: outcome.loads.peak(),
            busy: outcome.loads.busy(),
            moved: outcome.undisturbed.moved_share(),
            moved_after_change: outcome.after_change.moved_share(),
            peak_curve: outcome.bins.iter().map(Loads::peak).collect(),
        }
    }
}
