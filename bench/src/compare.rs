//! `bench compare`: simulates schedulers and compares them.
//!
//! ```text
//!  catalogue, sweep ──▶ Cell ──▶ engine ──▶ Outcome ──▶ Results ──▶ Report
//!  what to simulate    × scheduler   pure
//! ```
//!
//! All nodes share the servers. Each node has its own balancer with the scheduler under test, which
//! sees only the connections of the node's own clients. A [`Registry`] supplies the schedulers.
//! `outside` adds one that is not in the crate `schedulers`.

use std::process::ExitCode;
use std::thread;

use anyhow::bail;
use clap::Args;
use schedulers::Registry;

mod catalogue;
mod cells;
mod engine;
mod histogram;
mod node;
mod outcome;
mod outside;
mod plan;
mod report;
mod results;
mod scenario;
mod station;
mod sweep;
mod tournament;
mod workload;

use crate::report::Output;
use cells::Effort;
use plan::Plan;

/// Flags of `bench compare`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Compare only these schedulers [default: all].
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    schedulers: Vec<String>,

    /// Simulate only these scenarios; "sweep" varies the numbers of nodes and servers [default: all].
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    scenarios: Vec<String>,

    /// Approximate number of connections per run [default: 100000, quick: 10000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(100..))]
    connections: Option<u64>,

    /// Number of runs per scheduler and scenario, each with its own seed [default: 3, quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: Option<u32>,

    /// Seed of all random numbers; the same seed gives the same results.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Number of runs at the same time [default: the number of cores].
    #[arg(long)]
    threads: Option<usize>,

    #[command(flatten)]
    output: Output,

    /// Simulate few connections: all scenarios in seconds, with noise.
    #[arg(long)]
    quick: bool,

    /// List scenarios and schedulers.
    #[arg(long)]
    list: bool,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut registry = Registry::kernel();
        outside::register(&mut registry)?;
        if self.list {
            print!("{}", report::names(&catalogue::all(), &registry));
            return Ok(ExitCode::SUCCESS);
        }
        let plan = self.plan(&registry)?;
        let effort = Effort {
            seed: self.seed,
            repeats: self.repeats.unwrap_or(if self.quick { 1 } else { 3 }),
            threads: self
                .threads
                .or_else(|| thread::available_parallelism().ok().map(Into::into))
                .unwrap_or(1),
        };
        self.output.prepare()?;
        let measured = cells::run(&plan.cells(), &registry, effort)?;
        let results = plan.results(&measured, effort);
        self.output.finish(&results, &report::report(&results))?;
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self, registry: &Registry) -> anyhow::Result<Plan> {
        let known: Vec<String> = registry.names().map(str::to_owned).collect();
        let schedulers = chosen(&self.schedulers, &known, "scheduler")?;
        let mut scenarios = catalogue::all();
        let mut known: Vec<String> = scenarios.iter().map(|one| one.name.to_owned()).collect();
        known.push(plan::SWEEP.to_owned());
        let names = chosen(&self.scenarios, &known, "scenario")?;
        scenarios.retain(|scenario| names.iter().any(|name| name == scenario.name));
        let connections = self
            .connections
            .unwrap_or(if self.quick { 10_000 } else { 100_000 });
        let with_sweep = names.iter().any(|name| name == plan::SWEEP);
        Ok(Plan::new(schedulers, scenarios, with_sweep, connections))
    }
}

/// Returns `wanted` in the order of `known`, or all of `known` if `wanted` is empty.
fn chosen(wanted: &[String], known: &[String], what: &str) -> anyhow::Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|&name| !known.contains(name)) {
        bail!("unknown {what} {unknown:?}; known: {}", known.join(", "));
    }
    Ok(known
        .iter()
        .filter(|&name| wanted.is_empty() || wanted.contains(name))
        .cloned()
        .collect())
}
