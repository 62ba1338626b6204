//! Runs many simulations in parallel, until all are complete or `stop` is set.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Context as _;
use schedulers::Registry;

use super::engine;
use super::outcome::Outcome;
use super::scenario::Scenario;
use crate::process::thread_cpu;

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

/// Runs all cells. A cell that was not complete when `stop` became true has the result `None`.
///
/// After each cell, one of the threads calls `progress` with the number of complete cells.
///
/// # Errors
/// The error of the first run that fails.
pub(crate) fn run(
    cells: &[Cell<'_>],
    registry: &Registry,
    effort: Effort,
    stop: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> anyhow::Result<Vec<Option<Measured>>> {
    // Each thread takes the next cell from a shared counter. A fixed split would leave threads idle,
    // because cells differ in cost.
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; cells.len()]);
    let work = || -> anyhow::Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(cell) = cells.get(index) else {
                return Ok(());
            };
            let measured = measure(cell, registry, effort, stop)
                .with_context(|| format!("{} in {}", cell.scheduler, cell.scenario.name))?;
            if measured.is_none() {
                return Ok(());
            }
            let mut results = results.lock().expect("no thread panics holding it");
            results[index] = measured;
            drop(results);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
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
    Ok(results.into_inner().expect("no thread panics holding it"))
}

fn measure(
    cell: &Cell<'_>,
    registry: &Registry,
    effort: Effort,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Measured>> {
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
            stop,
        )?;
        let Some(run) = run else {
            return Ok(None);
        };
        p99s.push(run.latency.quantile(0.99));
        outcome.merge(&run);
    }
    Ok(Some(Measured {
        outcome,
        p99s,
        cpu: (thread_cpu() - start).as_secs_f64(),
    }))
}
