//! Writes down what kernels pick: `cargo run --release -p schedulers --example record`.
//!
//! Boots the kernels that `LAB_KERNEL` names (or the lab's own), lets each play random scenarios with
//! every scheduler, and writes `schedulers/tests/traces/RELEASE/SCHEDULER.trace`. Names of schedulers
//! as arguments: only these. The same kernel plays the same scenarios again, as far as their course
//! does not depend on time.

#![expect(clippy::print_stdout, reason = "says how far it is")]

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use lab::job::Job;
use lab::machine::{Config, Event, Machine, Memory, Silence};

#[path = "../tests/kernel/mod.rs"]
mod kernel;
#[path = "../tests/parity/trace.rs"]
mod trace;

use kernel::scenario::{Extent, Plan};
use trace::{Flavour, Scenario, Trace};

/// Every scheduler that the kernel has.
const SCHEDULERS: [&str; 14] = [
    "rr", "wrr", "lc", "wlc", "sed", "nq", "lblc", "lblcr", "sh", "dh", "mh", "fo", "ovf", "twos",
];

/// Per scheduler.
const SCENARIOS: u32 = 32;

const EXTENT: Extent = Extent {
    picks: 170,
    expiries: 2,
    pauses: 2,
};

/// Scenarios wait now and then: so many at a time.
const PLAYERS: usize = 4;

/// How often a scenario is played that waited too long, or not long enough, to be clear.
const TRIES: u32 = 3;

const SEED: u64 = 5;

/// Set in the environment of the program that runs inside a kernel.
const INSIDE: &str = "RECORD_INSIDE";

fn main() -> Result<()> {
    lab::guest::play_role();
    if std::env::var_os(INSIDE).is_some() {
        return record();
    }
    let mut kernels = lab::kernel::named()?;
    if kernels.is_empty() {
        kernels.push(lab::kernel::find_or_build()?);
    }
    thread::scope(|scope| {
        let runs = kernels
            .iter()
            .map(|kernel| scope.spawn(|| run_inside(kernel)));
        let runs: Vec<_> = runs.collect();
        runs.into_iter()
            .try_for_each(|run| run.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })
}

/// This program again, in `kernel`.
fn run_inside(kernel: &Path) -> Result<()> {
    let program = std::env::current_exe()?.into_os_string();
    let machine = Machine::boot(&Config {
        kernel: kernel.to_owned(),
        memory: Memory::DEFAULT,
        cpus: 1,
        init: vec![program.clone()],
    })?;
    let arguments = std::iter::once(program).chain(std::env::args_os().skip(1));
    let mut job = Job::here(arguments.collect::<Vec<OsString>>())?;
    job.env.push((INSIDE.into(), "1".into()));
    let running = machine.start(&job)?;
    loop {
        match running.next(None) {
            Ok(Event::Stdout(bytes)) => std::io::stdout().write_all(&bytes)?,
            Ok(Event::Stderr(bytes)) => std::io::stderr().write_all(&bytes)?,
            Ok(Event::Exit(0)) => break,
            Ok(Event::Exit(status)) => bail!("inside {}: status {status}", machine.release()),
            Err(Silence::Dead) => return Err(machine.obituary("died")),
            Err(Silence::Timeout) => bail!("the lab fell silent"),
        }
    }
    machine.power_off()
}

/// All traces of the running kernel.
fn record() -> Result<()> {
    raise_file_limit()?;
    let kernel = lab::kernel_release();
    let flavour = lab::in_fresh_network(kernel::flavour::probe)??;
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let directory = directory.join(&kernel);
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in &wanted {
        ensure!(SCHEDULERS.contains(&name.as_str()), "no scheduler {name:?}");
    }
    for scheduler in SCHEDULERS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == scheduler) {
            continue;
        }
        let begun = kernel::now();
        let trace = Trace {
            scheduler: scheduler.into(),
            kernel: kernel.clone(),
            flavour,
            scenarios: play_all(scheduler, &kernel, flavour)?,
        };
        let text = trace.to_string();
        let read: Trace = text.parse()?;
        ensure!(read == trace, "what is written does not read as it was");
        let path = directory.join(format!("{scheduler}.trace"));
        std::fs::write(&path, &text).with_context(|| path.display().to_string())?;
        let picks: usize = trace.scenarios.iter().map(Scenario::picks).sum();
        println!(
            "Linux {kernel}, {flavour}: {scheduler:5} {} scenarios, {picks} picks, {} bytes, {:.0} s",
            trace.scenarios.len(),
            text.len(),
            begun.elapsed().as_secs_f32()
        );
    }
    Ok(())
}

/// The scenarios of one scheduler, several at a time.
fn play_all(scheduler: &str, kernel: &str, flavour: Flavour) -> Result<Vec<Scenario>> {
    let next = AtomicU32::new(0);
    let played = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let play_some = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= SCENARIOS {
                    return Ok(());
                }
                let scenario = play(scheduler, number, kernel, flavour)
                    .with_context(|| format!("{scheduler}, scenario {number}"))?;
                let mut played = played
                    .lock()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?;
                played.push((number, scenario));
            }
        };
        let players: Vec<_> = (0..PLAYERS).map(|_| scope.spawn(play_some)).collect();
        players
            .into_iter()
            .try_for_each(|player| player.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    let mut played = played.into_inner()?;
    played.sort_by_key(|(number, _)| *number);
    Ok(played.into_iter().map(|(_, scenario)| scenario).collect())
}

fn play(scheduler: &str, number: u32, kernel: &str, flavour: Flavour) -> Result<Scenario> {
    let seed = kernel.bytes().fold(SEED, |sum, byte| {
        sum.wrapping_mul(257).wrapping_add(byte.into())
    });
    let mut tries = 1;
    loop {
        let plan = Plan::draw(scheduler, number, EXTENT, seed);
        match lab::in_fresh_network(|| plan.play(flavour))? {
            Err(error) if tries < TRIES => {
                eprintln!("{scheduler}, scenario {number}, again: {error:#}");
                tries += 1;
            }
            played => return played,
        }
    }
}

/// Every TCP connection is two files here.
fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raising the limit of open files")
}
