//! Which cells to run, and which figure each of them becomes.

use super::cells::{Cell, Effort, Measured};
use super::findings;
use super::report::{Chapter, Report, Row};
use super::scenario::Scenario;
use super::sweep::{NODES, Point, QUESTIONS, Question, SERVERS, Sweep};

/// The name under which the sweep is asked for.
pub(crate) const SWEEP: &str = "sweep";

/// What to simulate.
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

    /// All cells: the scenarios' first, by scheduler, then the sweep's in pairs.
    pub(crate) fn cells(&self) -> Vec<Cell<'_>> {
        let usual = self.scenarios.iter().flat_map(|scenario| {
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
        usual.chain(sweep).collect()
    }

    /// What the cells came to; `results` are theirs, in their order.
    pub(crate) fn report(&self, results: &[Option<Measured>], effort: Effort) -> Report {
        let (usual, sweep) = results.split_at(self.scenarios.len() * self.schedulers.len());
        let mut scenarios = Vec::new();
        let each = usual.chunks(self.schedulers.len().max(1));
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
        report.findings = findings::of(&report);
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

/// More servers need more connections for the same time; few need enough for a 99th percentile.
fn sweep_connections(usual: u64, servers: usize) -> u64 {
    usual * servers.clamp(16, 128) as u64 / 64
}
