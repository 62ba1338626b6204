//! Runs many simulations in parallel.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use schedulers::Registry;

use super::engine;
use super::outcome::Outcome;
use super::scenario::Scenario;
use crate::process::thread_cpu;
use crate::report::progress::StatusLine;

/// One simulation to run: a scheduler in a scenario.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) scheduler: &'a str,
    /// The number of connections per run.
    pub(crate) connections: u64,
}

/// The results of all runs of a cell.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The results of all runs together.
    pub(crate) outcome: Outcome,
    /// The 99th percentile of each run's latencies, in seconds.
    pub(crate) p99s: Vec<f64>,
    /// The processor time of all runs, in seconds.
    pub(crate) cpu: f64,
}

/// How the cells are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) seed: u64,
    /// The number of runs per cell, each with its own seed.
    pub(crate) repeats: u32,
    /// The number of runs at the same time.
    pub(crate) threads: usize,
}

/// Runs all cells, and prints how far it is.
///
/// # Errors
/// The error of the first run that fails.
pub(crate) fn run(
    cells: &[Cell<'_>],
    registry: &Registry,
    effort: Effort,
) -> anyhow::Result<Vec<Measured>> {
    // Each thread takes the next cell from a shared counter. A fixed split would leave threads idle,
    // because cells differ in cost.
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; cells.len()]);
    let (progress, start) = (StatusLine::new(), Instant::now());
    let work = || -> anyhow::Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(cell) = cells.get(index) else {
                return Ok(());
            };
            let measured = measure(cell, registry, effort)
                .with_context(|| format!("{} in {}", cell.scheduler, cell.scenario.name))?;
            let mut results = results.lock().expect("no thread panics holding it");
            results[index] = Some(measured);
            let (done, elapsed) = (
                results.iter().flatten().count(),
                start.elapsed().as_secs_f64(),
            );
            drop(results);
            progress.show(|| {
                let left = elapsed / done as f64 * (cells.len() - done) as f64;
                format!(
                    "{done} of {} cells, {elapsed:.0} s, about {left:.0} s left",
                    cells.len()
                )
            });
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..effort.threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("a worker panicked"))
    })?;
    progress.end();
    let results = results.into_inner().expect("no thread panics holding it");
    let results: Option<Vec<Measured>> = results.into_iter().collect();
    results.context("a cell was not simulated")
}

fn measure(cell: &Cell<'_>, registry: &Registry, effort: Effort) -> anyhow::Result<Measured> {
    let start = thread_cpu();
    let mut outcome = Outcome::new();
    let mut p99s = Vec::new();
    for repeat in 0..effort.repeats.max(1) {
        let run = engine::run(
            cell.scenario,
            registry,
            cell.scheduler,
            cell.connections,
            effort.seed.wrapping_add(u64::from(repeat)),
        )?;
        p99s.push(run.latency.quantile(0.99));
        outcome.merge(&run);
    }
    Ok(Measured {
        outcome,
        p99s,
        cpu: (thread_cpu() - start).as_secs_f64(),
    })
}
