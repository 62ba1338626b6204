//! `bench compare`: simulates schedulers and compares them.
//!
//! ```text
//!  catalogue, sweep ──▶ Cell ──▶ engine ──▶ Outcome ──▶ Report ──▶ table, csv, json, html
//!  what to simulate    × scheduler   pure             findings
//! ```
//!
//! All nodes share the servers. Each node has its own balancer with the scheduler under test, which
//! sees only the connections of the node's own clients. A [`Registry`] supplies the schedulers.
//! `outside` adds one that is not in the crate `schedulers`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fs, thread};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use schedulers::Registry;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

mod catalogue;
mod cells;
mod chart;
mod csv;
mod engine;
mod findings;
mod histogram;
mod html;
mod node;
mod outcome;
mod outside;
mod plan;
mod progress;
mod results;
mod scenario;
mod station;
mod sweep;
mod table;
mod tournament;
mod workload;

use cells::Effort;
use plan::Plan;
use progress::Progress;
use results::Report;

/// The exit code after an interruption (128 + SIGINT).
const INTERRUPTED: u8 = 130;

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

    /// Directory for report.html, results.json and the CSV files.
    #[arg(long, value_name = "DIR", default_value = "target/compare")]
    out: PathBuf,

    /// Format of the output.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Simulate few connections: all scenarios in seconds, with noise.
    #[arg(long)]
    quick: bool,

    /// List scenarios and schedulers.
    #[arg(long)]
    list: bool,
}

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables to read.
    Table,
    /// A line per scheduler and scenario.
    Csv,
    /// All results.
    Json,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut registry = Registry::kernel();
        outside::register(&mut registry)?;
        if self.list {
            print!("{}", table::names(&catalogue::all(), &registry));
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
        // The first signal ends the simulation, and the results so far are written. A second signal
        // ends the program.
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&stop))
                .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                .context("installing signal handlers")?;
        }
        // Create the directory now: an error after the simulation would waste the work.
        fs::create_dir_all(&self.out)
            .with_context(|| format!("creating directory {}", self.out.display()))?;

        let cells = plan.cells();
        let progress = Progress::new(cells.len());
        let results = cells::run(&cells, &registry, effort, &stop, &|done| {
            progress.show(done);
        })?;
        progress.end();
        let report = plan.report(&results, effort);
        self.write(&report)?;
        self.print(&report)?;
        Ok(if report.is_complete() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(INTERRUPTED)
        })
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

    fn write(&self, report: &Report) -> anyhow::Result<()> {
        let files = [
            ("results.csv", csv::rows(report)),
            ("curves.csv", csv::curves(report)),
            ("sweep.csv", csv::sweep(report)),
            ("results.json", serde_json::to_string_pretty(report)?),
            ("report.html", html::page(report)),
        ];
        for (name, text) in files {
            let path = self.out.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    fn print(&self, report: &Report) -> anyhow::Result<()> {
        match self.format {
            Format::Table => print!("{}", table::report(report)),
            Format::Csv => print!("{}", csv::rows(report)),
            Format::Json => println!("{}", serde_json::to_string_pretty(report)?),
        }
        if !report.is_complete() {
            eprintln!(
                "interrupted: {} of {} cells were simulated",
                report.cells_done, report.cells
            );
        }
        eprintln!("written: {}", self.out.join("report.html").display());
        Ok(())
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
