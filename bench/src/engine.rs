//! `bench engine`: measures the cost of a change and the memory of the daemon.
//!
//! * *cpu*: instructions and CPU time to add and remove an endpoint, from the JSON of the slice to
//!   the Ops and the state file. Runs outside the lab on the in-memory kernel; the figures include
//!   the work of that kernel.
//! * *calls*: system calls of the same changes and of a resync, on a lab kernel under strace.
//! * *memory*: memory of the real program on a lab kernel while it watches an API server.
//! * *launch*: the time from the start of the real program to the end of its first programming.
//! * *scrape*: CPU time and memory of the real program for a scrape with series of every Service.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use proxier::testing::dataplane::fake::FakeKernel;
use proxier::testing::dataplane::linux::Linux;
use proxier::testing::plan::{Machine, ServiceAddresses};

use crate::{inside, process};
use cluster::{Cluster, NODE_ADDRESS};
use node::{Node, Observer, Step};

mod calls;
mod cluster;
mod daemon;
mod instructions;
mod launch;
mod memory;
mod node;
mod scrape;

/// Maximum cost of a change in a larger cluster, in percent of its cost in the smallest.
const MAX_GROWTH_PERCENT: u64 = 120;

/// The measured changes, each with all its steps.
const CHANGES: [(&str, &[Step]); 2] = [
    ("adding an endpoint", &[Step::Added]),
    ("removing an endpoint", &[Step::Drained, Step::Deleted]),
];

/// Maximum CPU time of a step, in nanoseconds.
const MAX_NANOS: u64 = 300_000;

/// Maximum number of system calls on netlink sockets per change.
const MAX_CALLS: u64 = 4;

/// The section of the trace that contains a resync.
const READ_BACK: &str = "read-back";

/// The sections of the trace that are not measured.
const BETWEEN: &str = "between";

/// Flags of `bench engine`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The measurements to run.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cpu,calls,memory,launch,scrape"
    )]
    parts: Vec<Part>,

    /// Cluster sizes at which to measure changes, in Services.
    #[arg(
        long,
        value_name = "NUMBER",
        value_delimiter = ',',
        default_value = "1000,10000,40000"
    )]
    services: Vec<u32>,

    /// Endpoints per Service.
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: u32,

    /// How many times an endpoint is added and removed.
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    changes: u32,

    /// Number of Services for the measurements of memory and scrapes.
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    memory_services: u32,

    /// Number of Services for the measurement of the program's start.
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    launch_services: u32,

    /// The ipvs-proxier executable [default: the one in this program's directory].
    #[arg(long, value_name = "PATH")]
    proxier: Option<PathBuf>,

    /// The task of a process that a measurement starts.
    #[arg(long, hide = true)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Cpu,
    Calls,
    Memory,
    Launch,
    Scrape,
}

/// The task of a process that a measurement starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Applies the changes to the in-memory kernel.
    InMemory,
    /// Does the same and prints the mean CPU time per step in nanoseconds, as JSON.
    Timed,
    /// Applies the changes to the running kernel.
    OnKernel,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let services = *self.services.first().context("--services is empty")?;
        ensure!(
            self.services.iter().all(|&services| services > 0) && self.changes > 0,
            "--services and --changes must be at least 1"
        );
        match self.role {
            Some(Role::InMemory) => self.in_memory(self.cluster(services), &mut NoObserver)?,
            Some(Role::Timed) => self.timed(self.cluster(services))?,
            Some(Role::OnKernel) => self.on_kernel(self.cluster(services))?,
            None => return self.measure(),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the selected measurements; the exit code is a failure if a limit is exceeded.
    fn measure(&self) -> anyhow::Result<ExitCode> {
        let mut exceeded = Vec::new();
        let mut inside = ExitCode::SUCCESS;
        if inside::is_inside() {
            if self.parts.contains(&Part::Calls) {
                self.calls(&mut exceeded)?;
            }
            if self.parts.contains(&Part::Memory) {
                self.memory(&mut exceeded)?;
            }
            if self.parts.contains(&Part::Launch) {
                self.launch(&mut exceeded)?;
            }
            if self.parts.contains(&Part::Scrape) {
                self.scrape(&mut exceeded)?;
            }
        } else {
            if self.parts.contains(&Part::Cpu) {
                self.cpu(&mut exceeded)?;
            }
            if self.parts.iter().any(|part| *part != Part::Cpu) {
                inside = inside::rerun("3072M")?;
            }
        }
        for limit in &exceeded {
            println!("limit exceeded: {limit}");
        }
        Ok(if exceeded.is_empty() {
            inside
        } else {
            ExitCode::FAILURE
        })
    }

    fn cluster(&self, services: u32) -> Cluster {
        Cluster {
            services,
            endpoints: self.endpoints,
        }
    }

    /// Returns the command that runs this program in `role`.
    fn role(&self, role: &str, services: u32, changes: u32) -> anyhow::Result<Command> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["engine", "--role", role]);
        command.args(["--services", &services.to_string()]);
        command.args(["--endpoints", &self.endpoints.to_string()]);
        command.args(["--changes", &changes.to_string()]);
        Ok(command)
    }

    fn cpu(&self, exceeded: &mut Vec<String>) -> anyhow::Result<()> {
        println!(
            "adding and removing an endpoint, {} endpoints per Service, in-memory kernel\n\
             (limits: 20 % more instructions than in the smallest cluster; 300 microseconds of CPU)\n\n\
             {:>8}  {:<9}  {:>12}  {:>5}  {:>9}",
            self.endpoints, "services", "endpoint", "instructions", "x", "CPU",
        );
        let mut smallest = None;
        for &services in &self.services {
            // Callgrind counts exactly, so 25 changes are enough.
            let counted = instructions::count(&self.role("in-memory", services, 25)?)?;
            let nanos = self.nanos(services)?;
            let least: &BTreeMap<Step, u64> = smallest.get_or_insert_with(|| counted.clone());
            let sum = |counted: &BTreeMap<Step, u64>, steps: &[Step]| -> u64 {
                steps.iter().filter_map(|step| counted.get(step)).sum()
            };
            for step in Step::ALL {
                let (now, least) = (sum(&counted, &[step]), sum(least, &[step]));
                let nanos = nanos.get(&step).copied().unwrap_or_default();
                println!(
                    "{services:>8}  {:<9}  {now:>12}  {:>5}  {:>6} us",
                    step.name(),
                    ratio(now, least),
                    tenths(nanos / 100),
                );
                // The limit of the time is for optimised code only.
                if nanos > MAX_NANOS && !cfg!(debug_assertions) {
                    exceeded.push(format!(
                        "step {} takes more than {} microseconds of CPU at {services} Services",
                        step.name(),
                        MAX_NANOS / 1_000
                    ));
                }
            }
            for (change, steps) in CHANGES {
                if sum(&counted, steps) * 100 > sum(least, steps) * MAX_GROWTH_PERCENT {
                    exceeded.push(format!(
                        "{change} costs {} times as much at {services} Services as at {}",
                        ratio(sum(&counted, steps), sum(least, steps)),
                        self.services[0]
                    ));
                }
            }
        }
        println!();
        Ok(())
    }

    fn nanos(&self, services: u32) -> anyhow::Result<BTreeMap<Step, u64>> {
        let output = self.role("timed", services, self.changes)?.output()?;
        ensure!(
            output.status.success(),
            "measuring CPU time: {}",
            output.status
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn in_memory(&self, cluster: Cluster, observer: &mut impl Observer) -> anyhow::Result<()> {
        let kernel = FakeKernel {
            machine: Machine {
                addresses: [NODE_ADDRESS.into()].into(),
                ..Machine::default()
            },
            ..FakeKernel::default()
        };
        let mut node = Node::start(kernel, cluster)?;
        node::change(&mut node, cluster, self.changes, observer)
    }

    fn timed(&self, cluster: Cluster) -> anyhow::Result<()> {
        let mut clock = Clock::default();
        self.in_memory(cluster, &mut clock)?;
        let each = clock.spent.into_iter();
        let each: BTreeMap<Step, u128> = each
            .map(|(step, spent)| (step, (spent / self.changes).as_nanos()))
            .collect();
        println!("{}", serde_json::to_string(&each)?);
        Ok(())
    }

    fn on_kernel(&self, cluster: Cluster) -> anyhow::Result<()> {
        let linux = Linux::open(ServiceAddresses::Routes)?;
        let mut node = Node::start(linux, cluster)?;
        node::change(&mut node, cluster, self.changes, &mut Marker)?;
        calls::mark(READ_BACK);
        node.read_back()?;
        calls::mark(BETWEEN);
        Ok(())
    }

    fn calls(&self, exceeded: &mut Vec<String>) -> anyhow::Result<()> {
        println!(
            "system calls, Linux {} (limit: 4 on netlink sockets per change)\n\n{:>8}  {:<9}  {:>7}  {:>5}  by name",
            lab::kernel_release(),
            "services",
            "endpoint",
            "netlink",
            "all",
        );
        for &services in &self.services {
            let program = self.role("on-kernel", services, 10)?;
            let counted = lab::in_fresh_network(|| {
                daemon::add_node_address()?;
                calls::count(&program)
            })??;
            for step in Step::ALL {
                let calls = counted
                    .get(step.name())
                    .with_context(|| format!("strace recorded no step {}", step.name()))?;
                println!(
                    "{services:>8}  {:<9}  {:>7}  {:>5}  of {} times: {calls}",
                    step.name(),
                    tenths(calls.netlink * 10 / calls.times),
                    tenths(calls.all() * 10 / calls.times),
                    calls.times,
                );
                // The limit does not apply to the deletion of a drained destination, which first
                // counts the connections. No client waits for it.
                if step != Step::Deleted && calls.netlink > calls.times * MAX_CALLS {
                    exceeded.push(format!(
                        "step {} takes more than {MAX_CALLS} netlink system calls",
                        step.name()
                    ));
                }
            }
            let read_back = counted
                .get(READ_BACK)
                .context("strace recorded no resync")?;
            println!(
                "{services:>8}  read back: {} messages over netlink, of which {} are requests other \
                 than for a whole table; {read_back}",
                read_back.netlink, read_back.other_requests,
            );
        }
        println!();
        Ok(())
    }

    fn program(&self) -> anyhow::Result<PathBuf> {
        process::proxier(self.proxier.clone())
    }
}

/// Measures nothing.
///
/// Under callgrind no clock may be read: rustix calls `clock_gettime` in the vDSO, which fails
/// under valgrind.
struct NoObserver;

impl Observer for NoObserver {
    fn observe(
        &mut self,
        _: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        work()
    }
}

/// Sums up the CPU time of this thread per step, system time included.
#[derive(Default)]
struct Clock {
    spent: BTreeMap<Step, Duration>,
}

impl Observer for Clock {
    fn observe(
        &mut self,
        step: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let start = process::thread_cpu();
        work()?;
        *self.spent.entry(step).or_default() += process::thread_cpu() - start;
        Ok(())
    }
}

/// Marks the start and end of each step in the trace of system calls.
struct Marker;

impl Observer for Marker {
    fn observe(
        &mut self,
        step: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        calls::mark(step.name());
        work()?;
        calls::mark(BETWEEN);
        Ok(())
    }
}

/// Formats KiB as megabytes (10^6 bytes).
fn megabytes(kib: u64) -> String {
    tenths(kib * 1024 / 100_000) + " MB"
}

fn tenths(number: u64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

/// Formats `number / one` with two decimals.
fn ratio(number: u64, one: u64) -> String {
    let hundredths = number * 100 / one.max(1);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
