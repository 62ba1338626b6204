//! Runs many simulations on all cores, and stops when asked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};
use schedulers::Registry;

use super::engine;
use super::outcome::Outcome;
use super::scenario::Scenario;

/// One scheduler in one scenario.
#[derive(Debug)]
pub(crate) struct Cell<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) scheduler: &'a str,
    /// How many connections each run has.
    pub(crate) connections: u64,
}

/// What the runs of a cell came to.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// All runs together.
    pub(crate) outcome: Outcome,
    /// The 99th percentile of each run's latencies, in seconds.
    pub(crate) p99s: Vec<f64>,
    /// Processor time of all runs, in seconds.
    pub(crate) cpu: f64,
}

/// How to run them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) seed: u64,
    /// How many runs a cell has, each with a seed of its own.
    pub(crate) repeats: u32,
    /// How many run at once.
    pub(crate) threads: usize,
}

/// Runs all cells; those that were not done when `stop` became true are nothing.
///
/// `progress` is told, by whichever thread, how many are done.
///
/// # Errors
/// What the first failing run says.
pub(crate) fn run(
    cells: &[Cell<'_>],
    registry: &Registry,
    effort: Effort,
    stop: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> anyhow::Result<Vec<Option<Measured>>> {
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
        cpu: thread_cpu() - start,
    }))
}

/// Processor time of this thread, in seconds: what else runs on the machine does not count.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
