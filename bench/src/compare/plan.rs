//! The cells to run, and the report from their results.

use super::cells::{Cell, Effort, Measured};
use super::findings;
use super::results::{Chapter, Report, Row};
use super::scenario::Scenario;
use super::sweep::{NODES, Point, QUESTIONS, Question, SERVERS, Sweep};

/// The name that selects the sweep on the command line.
pub(crate) const SWEEP: &str = "sweep";

/// The scenarios and the sweep to simulate.
#[derive(Debug)]
pub(crate) struct Plan {
    schedulers: Vec<String>,
    connections: u64,
    scenarios: Vec<Scenario>,
    sweep: Vec<(Question, Scenario)>,
}

impl Plan {
    pub(crate) fn new(
        schedulers: Vec<String>,
        scenarios: Vec<Scenario>,
        with_sweep: bool,
        connections: u64,
    ) -> Self {
        let mut sweep = Vec::new();
        for question in QUESTIONS {
            let takes_part = |name: &str| schedulers.iter().any(|one| one == name);
            // A pair needs both schedulers: skip it if the command line excludes one.
            if !with_sweep || !takes_part(question.plain) || !takes_part(question.counting) {
                continue;
            }
            for servers in SERVERS {
                for nodes in NODES {
                    sweep.push((question, question.scenario(nodes, servers)));
                }
            }
        }
        Self {
            schedulers,
            connections,
            scenarios,
            sweep,
        }
    }

    /// Returns all cells: those of the scenarios by scheduler, then those of the sweep in pairs.
    pub(crate) fn cells(&self) -> Vec<Cell<'_>> {
        let of_scenarios = self.scenarios.iter().flat_map(|scenario| {
            self.schedulers.iter().map(|scheduler| Cell {
                scenario,
                scheduler,
                connections: self.connections,
            })
        });
        let sweep = self.sweep.iter().flat_map(|(question, scenario)| {
            [question.plain, question.counting].map(|scheduler| Cell {
                scenario,
                scheduler,
                connections: sweep_connections(self.connections, scenario.servers.len()),
            })
        });
        of_scenarios.chain(sweep).collect()
    }

    /// Returns the report; `results` are in the order of [`Plan::cells`].
    pub(crate) fn report(&self, results: &[Option<Measured>], effort: Effort) -> Report {
        let (of_scenarios, sweep) = results.split_at(self.scenarios.len() * self.schedulers.len());
        let mut scenarios = Vec::new();
        let each = of_scenarios.chunks(self.schedulers.len().max(1));
        for (scenario, results) in self.scenarios.iter().zip(each) {
            let rows: Vec<Row> = self
                .schedulers
                .iter()
                .zip(results)
                .filter_map(|(name, measured)| Some(Row::new(name, measured.as_ref()?)))
                .collect();
            if !rows.is_empty() {
                scenarios.push(Chapter::new(scenario, self.connections, rows));
            }
        }
        let done = results.iter().flatten();
        let mut report = Report {
            seed: effort.seed,
            connections: self.connections,
            repeats: effort.repeats,
            cells_done: done.clone().count(),
            cells: results.len(),
            simulated: done.clone().map(|cell| cell.outcome.arrived).sum(),
            cpu_secs: done.map(|cell| cell.cpu).sum(),
            findings: Vec::new(),
            scenarios,
            sweeps: self.sweeps(sweep),
        };
        report.findings = findings::from_report(&report);
        report
    }

    fn sweeps(&self, results: &[Option<Measured>]) -> Vec<Sweep> {
        let mut sweeps = Vec::new();
        for question in QUESTIONS {
            let points: Vec<Point> = self
                .sweep
                .iter()
                .zip(results.chunks(2))
                .filter(|((asked, _), _)| asked.name == question.name)
                .filter_map(|((_, scenario), pair)| match pair {
                    [Some(plain), Some(counting)] => Some(Point::new(scenario, plain, counting)),
                    _ => None,
                })
                .collect();
            if !points.is_empty() {
                sweeps.push(Sweep::new(question, points));
            }
        }
        sweeps
    }
}

/// Returns the number of connections of a run.
///
/// It grows with the number of servers, so that runs last equally long. The lower limit leaves enough
/// connections for a 99th percentile with few servers.
fn sweep_connections(per_run: u64, servers: usize) -> u64 {
    per_run * servers.clamp(16, 128) as u64 / 64
}
