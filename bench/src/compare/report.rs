//! The figures, ready to be shown, in milliseconds and shares.

use serde::Serialize;

use super::cells::Measured;
use super::findings::Finding;
use super::outcome::Loads;
use super::scenario::Scenario;

/// Losses below this share are not held against a scheduler.
pub(crate) const HARMLESS: f64 = 0.001;

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) seed: u64,
    /// Connections per run.
    pub(crate) connections: u64,
    /// Runs per scheduler and scenario, each with a seed of its own.
    pub(crate) repeats: u32,
    /// How many of all cells are done; fewer than all if somebody interrupted.
    pub(crate) cells_done: usize,
    pub(crate) cells: usize,
    /// Simulated connections, all runs together.
    pub(crate) simulated: u64,
    /// Processor time for them, in seconds.
    pub(crate) cpu_secs: f64,
    /// What follows from the figures, in words.
    pub(crate) findings: Vec<Finding>,
    pub(crate) scenarios: Vec<Chapter>,
    pub(crate) sweeps: Vec<super::sweep::Sweep>,
}

impl Report {
    /// Connections simulated in a millisecond of processor time.
    pub(crate) fn pace(&self) -> f64 {
        self.simulated as f64 / (self.cpu_secs * 1e3).max(1e-9)
    }

    /// Whether everything was done.
    pub(crate) fn is_complete(&self) -> bool {
        self.cells_done == self.cells
    }

    /// The scenario of this name, if any of it was done.
    pub(crate) fn chapter(&self, name: &str) -> Option<&Chapter> {
        self.scenarios.iter().find(|chapter| chapter.name == name)
    }
}

/// What was found in one scenario.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Chapter {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) nodes: u32,
    /// Servers listed at the start.
    pub(crate) servers: usize,
    pub(crate) load: f64,
    /// How long a run lasts, in simulated seconds.
    pub(crate) seconds: f64,
    /// When something happens to a server, in simulated seconds.
    pub(crate) events: Vec<f64>,
    pub(crate) rows: Vec<Row>,
}

impl Chapter {
    pub(crate) fn new(scenario: &Scenario, connections: u64, rows: Vec<Row>) -> Self {
        let seconds = connections as f64 / scenario.rate();
        Self {
            name: scenario.name.to_owned(),
            about: scenario.about.to_owned(),
            nodes: scenario.nodes,
            servers: scenario
                .servers
                .iter()
                .filter(|kind| kind.weight.is_some())
                .count(),
            load: scenario.load,
            seconds,
            events: scenario
                .script
                .iter()
                .map(|step| step.share * seconds + step.plus)
                .collect(),
            rows,
        }
    }

    /// The lowest 99th percentile, in milliseconds, among those that lose about as few connections
    /// as anybody.
    pub(crate) fn lowest_p99(&self) -> f64 {
        self.sound()
            .map(|row| row.latency_ms.p99)
            .fold(f64::INFINITY, f64::min)
    }

    /// Those that lose about as few connections as anybody.
    pub(crate) fn sound(&self) -> impl Iterator<Item = &Row> {
        let least = self.least_lost();
        self.rows
            .iter()
            .filter(move |row| row.lost_share <= least + HARMLESS)
    }

    /// The least share of connections that anybody loses.
    pub(crate) fn least_lost(&self) -> f64 {
        let shares = self.rows.iter().map(|row| row.lost_share);
        shares.fold(f64::INFINITY, f64::min)
    }

    /// The row of this scheduler.
    pub(crate) fn row(&self, scheduler: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.scheduler == scheduler)
    }
}

/// What a scheduler came to in a scenario.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) scheduler: String,
    pub(crate) arrived: u64,
    pub(crate) completed: u64,
    pub(crate) unserved: u64,
    pub(crate) turned_away: u64,
    pub(crate) unanswered: u64,
    pub(crate) broken: u64,
    pub(crate) staying: u64,
    /// Connections that were not served to their end, as a share of all.
    pub(crate) lost_share: f64,
    pub(crate) latency_ms: Latency,
    /// The 99th percentile of the best and of the worst run.
    pub(crate) p99_range_ms: [f64; 2],
    /// Coefficient of variation of connections per core, on average over time.
    pub(crate) spread: Option<f64>,
    /// The most loaded server in mean loads, on average over time.
    pub(crate) peak: Option<f64>,
    /// The share of servers with any connection, on average over time.
    pub(crate) busy: Option<f64>,
    /// Share of akin connections that met another server although nothing had changed.
    pub(crate) parted_undisturbed: Option<f64>,
    /// Share of akin connections that met another server after the list had changed, though not
    /// concerning theirs.
    pub(crate) parted_across_change: Option<f64>,
    /// `spread` over time, at equal distances.
    pub(crate) spread_curve: Vec<Option<f64>>,
    /// `peak` over time.
    pub(crate) peak_curve: Vec<Option<f64>>,
    /// Connections simulated in a millisecond of processor time.
    pub(crate) pace: f64,
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
        let Measured { outcome, p99s, cpu } = measured;
        let latency = &outcome.latency;
        let curve = |of: fn(&Loads) -> Option<f64>| outcome.bins.iter().map(of).collect();
        Self {
            scheduler: scheduler.to_owned(),
            arrived: outcome.arrived,
            completed: outcome.completed,
            unserved: outcome.unserved,
            turned_away: outcome.turned_away,
            unanswered: outcome.unanswered,
            broken: outcome.broken,
            staying: outcome.staying,
            lost_share: outcome.lost_share(),
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
            parted_undisturbed: outcome.undisturbed.parted_share(),
            parted_across_change: outcome.across_change.parted_share(),
            spread_curve: curve(Loads::spread),
            peak_curve: curve(Loads::peak),
            pace: outcome.arrived as f64 / (cpu * 1e3).max(1e-9),
        }
    }
}
