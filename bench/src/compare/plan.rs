//! The cells to run, and the results of all.

use super::cells::{Cell, Effort, Measured};
use super::results::{Chapter, Results, Row};
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

    /// Returns the results; `measured` is in the order of [`Plan::cells`].
    pub(crate) fn results(&self, measured: &[Measured], effort: Effort) -> Results {
        let (of_scenarios, sweep) = measured.split_at(self.scenarios.len() * self.schedulers.len());
        let each = of_scenarios.chunks(self.schedulers.len().max(1));
        let scenarios = self.scenarios.iter().zip(each).map(|(scenario, measured)| {
            let rows = self.schedulers.iter().zip(measured);
            let rows = rows.map(|(name, measured)| Row::new(name, measured));
            Chapter::new(scenario, self.connections, rows.collect())
        });
        Results {
            seed: effort.seed,
            connections: self.connections,
            repeats: effort.repeats,
            simulated: measured.iter().map(|it| it.outcome.fates.arrived).sum(),
            cpu_secs: measured.iter().map(|it| it.cpu).sum(),
            scenarios: scenarios.collect(),
            sweeps: self.sweeps(sweep),
        }
    }

    fn sweeps(&self, measured: &[Measured]) -> Vec<Sweep> {
        let mut sweeps = Vec::new();
        for question in QUESTIONS {
            let cells = self.sweep.iter().zip(measured.chunks(2));
            let points = cells.filter_map(|((asked, scenario), pair)| match pair {
                [plain, counting] if asked.name == question.name => {
                    Some(Point::new(question, scenario, plain, counting))
                }
                _ => None,
            });
            let points: Vec<Point> = points.collect();
            if !points.is_empty() {
                sweeps.push(Sweep { question, points });
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
