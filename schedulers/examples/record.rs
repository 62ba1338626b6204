//! Records what kernels pick: `cargo run --release -p schedulers --example record`.
//!
//! The program boots the kernels that `LAB_KERNEL` names (or the lab's own). Each plays random scenarios
//! with every scheduler. The picks are written to `schedulers/tests/traces/RELEASE/SCHEDULER.trace`. This
//! takes five minutes on two processors.
//!
//! Arguments select traces by name. The recordings that wait until `lblc` and `lblcr` forget addresses
//! must be named: `lblc-aged` and `lblcr-aged` take half an hour each, `lblc-crowd` and `lblcr-crowd`
//! eight minutes.
//!
//! The scenarios are the same in every run on the same kernel, as far as they do not depend on time.

#![expect(clippy::print_stdout, reason = "the program prints its progress")]

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use lab::job::Job;
use lab::machine::{Config, Event, Machine, Memory, NoEvent};

#[path = "../tests/kernel/crowd.rs"]
mod crowd;
#[path = "../tests/kernel/mod.rs"]
mod kernel;
#[path = "../tests/parity/trace.rs"]
mod trace;

use kernel::plan::{Extent, Plan};
use trace::{Flavour, Scenario, Trace};

/// A trace to record.
struct Recording {
    /// The name of its file.
    name: &'static str,
    scheduler: &'static str,
    scenarios: u32,
    content: Content,
    /// How many scenarios are played at a time, since most of their time is waiting.
    threads: usize,
}

/// The events of a scenario.
enum Content {
    Random(Extent),
    Crowd { is_v6: bool },
}

impl Recording {
    /// An ordinary trace; every scheduler of the kernel has one.
    const fn ordinary(scheduler: &'static str) -> Self {
        Self {
            name: scheduler,
            scheduler,
            scenarios: 32,
            content: Content::Random(Extent {
                picks: 170,
                expiries: 2,
                pauses: 2,
                idle_secs: &[],
            }),
            threads: 4,
        }
    }

    /// A trace that includes the kernel's half-hourly collection. That is after thirty timers of a minute,
    /// which take 1842 to 1847 s in the kernel: during the last idle time. Addresses not used since
    /// an earlier idle time then differ in age.
    const fn aged(name: &'static str, scheduler: &'static str) -> Self {
        Self {
            name,
            scheduler,
            scenarios: 16,
            content: Content::Random(Extent {
                picks: 200,
                expiries: 0,
                pauses: 0,
                idle_secs: &[700, 800, 360],
            }),
            threads: 16,
        }
    }

    /// A trace with more addresses than the kernel remembers.
    const fn crowd(name: &'static str, scheduler: &'static str, is_v6: bool) -> Self {
        Self {
            name,
            scheduler,
            scenarios: 1,
            content: Content::Crowd { is_v6 },
            threads: 1,
        }
    }

    /// Returns whether the trace is recorded without being named.
    fn is_ordinary(&self) -> bool {
        matches!(&self.content, Content::Random(extent) if extent.idle_secs.is_empty())
    }
}

const RECORDINGS: [Recording; 18] = [
    Recording::ordinary("rr"),
    Recording::ordinary("wrr"),
    Recording::ordinary("lc"),
    Recording::ordinary("wlc"),
    Recording::ordinary("sed"),
    Recording::ordinary("nq"),
    Recording::ordinary("lblc"),
    Recording::ordinary("lblcr"),
    Recording::ordinary("sh"),
    Recording::ordinary("dh"),
    Recording::ordinary("mh"),
    Recording::ordinary("fo"),
    Recording::ordinary("ovf"),
    Recording::ordinary("twos"),
    Recording::aged("lblc-aged", "lblc"),
    Recording::aged("lblcr-aged", "lblcr"),
    Recording::crowd("lblc-crowd", "lblc", false),
    Recording::crowd("lblcr-crowd", "lblcr", true),
];

/// How often a scenario is played until its picks can be attributed.
const TRIES: u32 = 3;

const SEED: u64 = 5;

/// Set in the environment of the program inside a kernel.
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

/// Runs this program in `kernel`.
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
            Ok(Event::Exit(status)) => bail!(
                "the program exited with status {status} in {}",
                machine.release()
            ),
            Err(NoEvent::KernelEnded) => return Err(machine.failure("died")),
            Err(NoEvent::Timeout) => bail!("the lab does not respond"),
        }
    }
    machine.power_off()
}

/// Records the traces of the running kernel.
fn record() -> Result<()> {
    raise_file_limit()?;
    let kernel = lab::kernel_release();
    let flavour = lab::in_fresh_network(kernel::flavour::probe)??;
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let directory = directory.join(&kernel);
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in &wanted {
        let is_known = RECORDINGS.iter().any(|recording| recording.name == name);
        ensure!(is_known, "unknown trace {name:?}");
    }
    for recording in &RECORDINGS {
        let is_wanted = match &wanted[..] {
            [] => recording.is_ordinary(),
            names => names.iter().any(|name| name == recording.name),
        };
        if !is_wanted {
            continue;
        }
        let begun = kernel::now();
        let trace = Trace {
            scheduler: recording.scheduler.into(),
            kernel: kernel.clone(),
            flavour,
            scenarios: play_all(recording, &kernel, flavour)?,
        };
        let text = trace.to_string();
        let read: Trace = text.parse()?;
        ensure!(
            read == trace,
            "the trace changes when it is written and read"
        );
        let path = directory.join(format!("{}.trace", recording.name));
        std::fs::write(&path, &text).with_context(|| path.display().to_string())?;
        let picks: usize = trace.scenarios.iter().map(Scenario::picks).sum();
        println!(
            "Linux {kernel}, {flavour}: {:10} {} scenarios, {picks} picks, {} bytes, {:.0} s",
            recording.name,
            trace.scenarios.len(),
            text.len(),
            begun.elapsed().as_secs_f32()
        );
    }
    Ok(())
}

/// Plays the scenarios of one trace, several at a time.
fn play_all(recording: &Recording, kernel: &str, flavour: Flavour) -> Result<Vec<Scenario>> {
    let next = AtomicU32::new(0);
    let played = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let play_some = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= recording.scenarios {
                    return Ok(());
                }
                let scenario = play(recording, number, kernel, flavour)
                    .with_context(|| format!("{}, scenario {number}", recording.name))?;
                let mut played = played
                    .lock()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?;
                played.push((number, scenario));
            }
        };
        let threads: Vec<_> = (0..recording.threads)
            .map(|_| scope.spawn(play_some))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    let mut played = played.into_inner()?;
    played.sort_by_key(|(number, _)| *number);
    Ok(played.into_iter().map(|(_, scenario)| scenario).collect())
}

fn play(recording: &Recording, number: u32, kernel: &str, flavour: Flavour) -> Result<Scenario> {
    let seed = kernel.bytes().fold(SEED, |sum, byte| {
        sum.wrapping_mul(257).wrapping_add(byte.into())
    });
    let mut tries = 1;
    loop {
        let played = lab::in_fresh_network(|| match &recording.content {
            Content::Random(extent) => {
                Plan::draw(recording.scheduler, number, *extent, seed).play(flavour)
            }
            Content::Crowd { is_v6 } => crowd::play(recording.scheduler, *is_v6, flavour),
        })?;
        match played {
            Err(error) if tries < TRIES => {
                eprintln!(
                    "{}, scenario {number} is repeated: {error:#}",
                    recording.name
                );
                tries += 1;
            }
            played => return played,
        }
    }
}

/// Raises the limit of open files: every TCP connection takes two.
fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Some(1 << 16);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, limit).context("raising the limit of open files")
}
