//! `bench relay`: the relay of the userspace dataplane, HAProxy, nginx and the barest relay.
//!
//! ```text
//!  load ──▶ contestant, a process each ──▶ endpoints
//!    └─────────── this process ───────────────┘
//! ```
//!
//! The contestants run all the time, in a network namespace of their own where the machine permits it.
//! Each round applies each load to one contestant after the other, in changing order, so that a slow
//! moment of the machine rarely hits a single contestant. The CPU time is that of the contestant's
//! processes. On the loopback device, the kernel accounts the work for a packet to the sending process.

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

mod barest;
mod contestant;
mod endpoints;
mod figures;
mod load;
mod measure;
mod ours;
mod poller;
mod report;
mod rounds;
mod train;

use crate::process;
use crate::report::Output;
use contestant::{Contestant, Running};
use endpoints::Endpoints;
use report::Results;
use rounds::Rounds;

/// Flags of `bench relay`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The relays to measure.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "barest,haproxy,nginx,ours"
    )]
    relays: Vec<Contestant>,

    /// The loads [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    loads: Vec<measure::Task>,

    /// Threads or processes of each relay.
    #[arg(long, default_value_t = 1)]
    workers: usize,

    /// Number of rounds; the report shows medians.
    #[arg(long, default_value_t = 7)]
    rounds: usize,

    /// Seconds of each load in a round.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,

    /// Idle connections, by which memory is measured [default: as many as the limit of descriptors
    /// permits, at most 8000].
    #[arg(long)]
    idle: Option<usize>,

    #[command(flatten)]
    output: Output,

    /// Be this relay, until the process is killed.
    #[arg(long, hide = true, value_enum)]
    role: Option<Contestant>,
}

impl Flags {
    pub(crate) fn run(mut self) -> anyhow::Result<ExitCode> {
        ensure!(
            self.workers > 0 && self.rounds > 0 && self.seconds > 0.0,
            "--workers, --rounds and --seconds must be above 0"
        );
        let descriptors = raise_descriptors()?;
        match self.role {
            Some(Contestant::Ours) => ours::run(Contestant::Ours.address(), self.workers)?,
            Some(other) => barest::run(other.address(), self.workers)?,
            None => return self.measure(descriptors),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&mut self, descriptors: usize) -> anyhow::Result<ExitCode> {
        self.output.prepare()?;
        contestant::ensure_installed(&self.relays)?;
        if self.loads.is_empty() {
            self.loads = measure::Task::ALL.to_vec();
        }
        // A relay has two descriptors for each connection, and so does this process: the client's
        // and the endpoint's.
        let most = (descriptors.saturating_sub(500) / 2).min(8_000);
        let idle = self.idle.unwrap_or(most);
        let results = match lab::in_fresh_network(|| self.compete(idle)) {
            Ok(results) => results?,
            // Without the privilege, the loopback device of the machine serves.
            Err(_) => self.compete(idle)?,
        };
        self.output.finish(&results, &results.report())?;
        Ok(if results.missed().is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Starts the endpoints and the contestants, and runs the rounds.
    fn compete(&self, idle: usize) -> anyhow::Result<Results> {
        let processors = std::thread::available_parallelism()?.get();
        let (for_relays, for_load) = divide_processors(self.workers)?;
        let directory = process::temporary("relay");
        fs::create_dir_all(&directory)?;
        let endpoints = Endpoints::bind().context("listening at the endpoints' addresses")?;
        let is_over = AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                sched_setaffinity(None, &for_load)?;
                endpoints.serve(&is_over)
            });
            let rounds = sched_setaffinity(None, &for_load)
                .map_err(Into::into)
                .and_then(|()| {
                    let start = |&relay: &Contestant| {
                        Running::start(relay, self.workers, &for_relays, &directory)
                    };
                    let running = self.relays.iter().map(start);
                    Rounds::new(running.collect::<anyhow::Result<_>>()?).run(self, idle)
                });
            is_over.store(true, Ordering::Relaxed);
            let served = server.join();
            served.map_err(|_| anyhow::anyhow!("the endpoints panicked"))??;
            rounds
        });
        fs::remove_dir_all(&directory)?;
        Ok(Results {
            kernel: lab::kernel_release(),
            processors,
            workers: self.workers,
            rounds: self.rounds,
            seconds: self.seconds,
            idle_connections: idle,
            versions: self.relays.iter().filter_map(|it| it.version()).collect(),
            figures: rounds?,
        })
    }
}

/// Raises the limit of descriptors to the hard limit, and returns it.
fn raise_descriptors() -> anyhow::Result<usize> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    )?;
    Ok(maximum.map_or(usize::MAX, |most| {
        usize::try_from(most).unwrap_or(usize::MAX)
    }))
}

/// Returns the processors for the relays and those for the load; disjoint if the machine has
/// enough.
fn divide_processors(workers: usize) -> anyhow::Result<(CpuSet, CpuSet)> {
    let all = sched_getaffinity(None)?;
    let numbers: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&number| all.is_set(number))
        .collect();
    if numbers.len() <= workers {
        return Ok((all, all));
    }
    let set = |numbers: &[usize]| {
        let mut set = CpuSet::new();
        for &number in numbers {
            set.set(number);
        }
        set
    };
    let (relays, load) = numbers.split_at(workers);
    Ok((set(relays), set(load)))
}
