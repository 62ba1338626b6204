//! Writes down what kernels pick: `cargo run --release -p schedulers --example record`.
//!
//! Boots the kernels that `LAB_KERNEL` names (or the lab's own), lets each play random scenarios with
//! every scheduler, and writes `schedulers/tests/traces/RELEASE/SCHEDULER.trace`; five minutes on two
//! processors. Names of traces as arguments: only these. Those of `lblc` and `lblcr` that wait until
//! the kernel forgets must be named: `lblc-aged` and `lblcr-aged` take half an hour each, `lblc-crowd`
//! and `lblcr-crowd` eight minutes.
//!
//! The same kernel plays the same scenarios again, as far as their course does not depend on time.

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

#[path = "../tests/kernel/crowd.rs"]
mod crowd;
#[path = "../tests/kernel/mod.rs"]
mod kernel;
#[path = "../tests/parity/trace.rs"]
mod trace;

use kernel::plan::{Extent, Plan};
use trace::{Flavour, Scenario, Trace};

/// A trace to be recorded.
struct Order {
    /// What its file is called.
    name: &'static str,
    scheduler: &'static str,
    scenarios: u32,
    course: Course,
    /// How many scenarios are played at a time; they wait now and then.
    players: usize,
}

/// What happens in a scenario.
enum Course {
    Random(Extent),
    Crowd { is_v6: bool },
}

impl Order {
    /// One of the ordinary ones, of which every scheduler of the kernel has one.
    const fn usual(scheduler: &'static str) -> Self {
        Self {
            name: scheduler,
            scheduler,
            scenarios: 32,
            course: Course::Random(Extent {
                picks: 170,
                expiries: 2,
                pauses: 2,
                naps: &[],
            }),
            players: 4,
        }
    }

    /// One that lives through the half hour: thirty looks each minute, which the kernel's timers make
    /// 1842 to 1847 seconds. That is during the last nap; what was not asked for since an earlier one
    /// has another age then.
    const fn aged(name: &'static str, scheduler: &'static str) -> Self {
        Self {
            name,
            scheduler,
            scenarios: 16,
            course: Course::Random(Extent {
                picks: 200,
                expiries: 0,
                pauses: 0,
                naps: &[700, 800, 360],
            }),
            players: 16,
        }
    }

    /// One of more addresses than there is room for.
    const fn crowd(name: &'static str, scheduler: &'static str, is_v6: bool) -> Self {
        Self {
            name,
            scheduler,
            scenarios: 1,
            course: Course::Crowd { is_v6 },
            players: 1,
        }
    }

    /// Whether it is recorded though nobody named it.
    fn is_usual(&self) -> bool {
        matches!(&self.course, Course::Random(extent) if extent.naps.is_empty())
    }
}

const ORDERS: [Order; 18] = [
    Order::usual("rr"),
    Order::usual("wrr"),
    Order::usual("lc"),
    Order::usual("wlc"),
    Order::usual("sed"),
    Order::usual("nq"),
    Order::usual("lblc"),
    Order::usual("lblcr"),
    Order::usual("sh"),
    Order::usual("dh"),
    Order::usual("mh"),
    Order::usual("fo"),
    Order::usual("ovf"),
    Order::usual("twos"),
    Order::aged("lblc-aged", "lblc"),
    Order::aged("lblcr-aged", "lblcr"),
    Order::crowd("lblc-crowd", "lblc", false),
    Order::crowd("lblcr-crowd", "lblcr", true),
];

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
        let is_known = ORDERS.iter().any(|order| order.name == name);
        ensure!(is_known, "no trace {name:?}");
    }
    for order in &ORDERS {
        let is_wanted = match &wanted[..] {
            [] => order.is_usual(),
            names => names.iter().any(|name| name == order.name),
        };
        if !is_wanted {
            continue;
        }
        let begun = kernel::now();
        let trace = Trace {
            scheduler: order.scheduler.into(),
            kernel: kernel.clone(),
            flavour,
            scenarios: play_all(order, &kernel, flavour)?,
        };
        let text = trace.to_string();
        let read: Trace = text.parse()?;
        ensure!(read == trace, "what is written does not read as it was");
        let path = directory.join(format!("{}.trace", order.name));
        std::fs::write(&path, &text).with_context(|| path.display().to_string())?;
        let picks: usize = trace.scenarios.iter().map(Scenario::picks).sum();
        println!(
            "Linux {kernel}, {flavour}: {:10} {} scenarios, {picks} picks, {} bytes, {:.0} s",
            order.name,
            trace.scenarios.len(),
            text.len(),
            begun.elapsed().as_secs_f32()
        );
    }
    Ok(())
}

/// The scenarios of one trace, several at a time.
fn play_all(order: &Order, kernel: &str, flavour: Flavour) -> Result<Vec<Scenario>> {
    let next = AtomicU32::new(0);
    let played = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let play_some = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= order.scenarios {
                    return Ok(());
                }
                let scenario = play(order, number, kernel, flavour)
                    .with_context(|| format!("{}, scenario {number}", order.name))?;
                let mut played = played
                    .lock()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?;
                played.push((number, scenario));
            }
        };
        let players: Vec<_> = (0..order.players).map(|_| scope.spawn(play_some)).collect();
        players
            .into_iter()
            .try_for_each(|player| player.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    let mut played = played.into_inner()?;
    played.sort_by_key(|(number, _)| *number);
    Ok(played.into_iter().map(|(_, scenario)| scenario).collect())
}

fn play(order: &Order, number: u32, kernel: &str, flavour: Flavour) -> Result<Scenario> {
    let seed = kernel.bytes().fold(SEED, |sum, byte| {
        sum.wrapping_mul(257).wrapping_add(byte.into())
    });
    let mut tries = 1;
    loop {
        let played = lab::in_fresh_network(|| match &order.course {
            Course::Random(extent) => {
                Plan::draw(order.scheduler, number, *extent, seed).play(flavour)
            }
            Course::Crowd { is_v6 } => crowd::play(order.scheduler, *is_v6, flavour),
        })?;
        match played {
            Err(error) if tries < TRIES => {
                eprintln!("{}, scenario {number}, again: {error:#}", order.name);
                tries += 1;
            }
            played => return played,
        }
    }
}

/// Every TCP connection is two files here, and root of the lab may have as many as it likes.
fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Some(1 << 16);
    let limit = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, limit).context("raising the limit of open files")
}
