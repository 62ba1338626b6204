//! `bench engine`: what a change costs the daemon, and what it takes of memory.
//!
//! * *Instructions and CPU* of an endpoint that comes and goes, from the slice's JSON to the Ops and
//!   the state file: in processes outside the lab, against a kernel in memory, whose own work counts
//!   as ours.
//! * *System calls* of the same, and of reading everything back: on the lab's kernel, under strace.
//! * *Memory* of the real program on the lab's kernel, following an API server.
//! * *Start*: when, in the first programming of a node, a client reaches the API server's Service.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use proxier::dataplane::fake::FakeKernel;
use proxier::dataplane::linux::Linux;
use proxier::plan::{Machine, ServiceAddresses};
use rustix::time::{ClockId, clock_gettime};

use crate::inside;
use cluster::{Cluster, NODE_ADDRESS};
use memory::Memory;
use node::{Node, Observer, Step};

mod calls;
mod cluster;
mod instructions;
mod memory;
mod node;
mod start;

/// What a change may cost in the largest cluster, in percent of what it costs in the smallest.
const MAX_GROWTH_PERCENT: u64 = 120;

/// The changes, each with all that follows from it.
const CHANGES: [(&str, &[Step]); 2] = [
    ("an endpoint that comes", &[Step::Comes]),
    ("an endpoint that goes", &[Step::Goes, Step::Forgotten]),
];

/// Nanoseconds of CPU that a change may take.
const MAX_NANOS: u64 = 300_000;

/// System calls on netlink sockets that a change may take.
const MAX_CALLS: u64 = 4;

/// Bytes that may be resident.
const MAX_RESIDENT: u64 = 60_000_000;

/// Per mille of the first programming after which the API server's Service is usable.
const MAX_START: u128 = 50;

/// Section of the trace in which everything is read back.
const READ_BACK: &str = "read-back";

/// Section of the trace in which nothing is measured.
const BETWEEN: &str = "between";

/// Flags of `bench engine`.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// What is measured.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "cpu,calls,memory,start"
    )]
    parts: Vec<Part>,

    /// The sizes of cluster at which changes are measured, in Services.
    #[arg(
        long,
        value_name = "NUMBER",
        value_delimiter = ',',
        default_value = "1000,10000,40000"
    )]
    services: Vec<u32>,

    /// How many endpoints each Service has.
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    endpoints: u32,

    /// How often an endpoint comes and goes.
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    changes: u32,

    /// How many Services the daemon follows whose memory is measured.
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    memory_services: u32,

    /// How many Services a node has that starts.
    #[arg(long, value_name = "NUMBER", default_value_t = 2_000)]
    start_services: u32,

    /// The program ipvs-proxier [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    proxier: Option<PathBuf>,

    /// What this process is in a measurement.
    #[arg(long, hide = true)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Cpu,
    Calls,
    Memory,
    Start,
}

/// What a process that this program starts does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Changes a kernel in memory.
    InMemory,
    /// The same, and prints nanoseconds of CPU by step.
    Timed,
    /// Changes the running kernel.
    OnKernel,
}

impl Flags {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let services = *self.services.first().context("no size of cluster")?;
        ensure!(
            self.services.iter().all(|&services| services > 0) && self.changes > 0,
            "nothing to measure"
        );
        match self.role {
            Some(Role::InMemory) => self.in_memory(self.cluster(services), &mut Nobody)?,
            Some(Role::Timed) => self.timed(self.cluster(services))?,
            Some(Role::OnKernel) => self.on_kernel(self.cluster(services))?,
            None => return self.measure(),
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Measures the chosen parts; fails where a target is missed.
    fn measure(&self) -> anyhow::Result<ExitCode> {
        let mut missed = Vec::new();
        let mut inside = ExitCode::SUCCESS;
        if inside::is_inside() {
            if self.parts.contains(&Part::Calls) {
                self.calls(&mut missed)?;
            }
            if self.parts.contains(&Part::Memory) {
                self.memory(&mut missed)?;
            }
            if self.parts.contains(&Part::Start) {
                self.start(&mut missed)?;
            }
        } else {
            if self.parts.contains(&Part::Cpu) {
                self.cpu(&mut missed)?;
            }
            if self.parts.iter().any(|part| *part != Part::Cpu) {
                inside = inside::rerun("3072M".parse().map_err(anyhow::Error::msg)?)?;
            }
        }
        for what in &missed {
            println!("target missed: {what}");
        }
        Ok(match missed.is_empty() {
            true => inside,
            false => ExitCode::FAILURE,
        })
    }

    fn cluster(&self, services: u32) -> Cluster {
        Cluster {
            services,
            endpoints: self.endpoints,
        }
    }

    /// This program in a role.
    fn role(&self, role: &str, services: u32, changes: u32) -> anyhow::Result<Command> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["engine", "--role", role]);
        command.args(["--services", &services.to_string()]);
        command.args(["--endpoints", &self.endpoints.to_string()]);
        command.args(["--changes", &changes.to_string()]);
        Ok(command)
    }

    fn cpu(&self, missed: &mut Vec<String>) -> anyhow::Result<()> {
        println!(
            "an endpoint change, {} endpoints per Service, outside the kernel\n\
             (targets: flat within 20 %; below 300 microseconds of CPU at 10,000 Services)\n\n\
             {:>8}  {:<9}  {:>12}  {:>5}  {:>9}",
            self.endpoints, "services", "endpoint", "instructions", "x", "CPU",
        );
        let mut smallest = None;
        for &services in &self.services {
            // Exact, so that few are enough.
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
                // Unoptimised code says nothing about time.
                if nanos > MAX_NANOS && !cfg!(debug_assertions) {
                    missed.push(format!("{} takes long at {services} Services", step.name()));
                }
            }
            for (change, steps) in CHANGES {
                if sum(&counted, steps) * 100 > sum(least, steps) * MAX_GROWTH_PERCENT {
                    missed.push(format!("{change} costs more at {services} Services"));
                }
            }
        }
        println!();
        Ok(())
    }

    fn nanos(&self, services: u32) -> anyhow::Result<BTreeMap<Step, u64>> {
        let output = self.role("timed", services, self.changes)?.output()?;
        ensure!(output.status.success(), "in memory: {}", output.status);
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
        node::live(&mut node, cluster, self.changes, observer)
    }

    fn timed(&self, cluster: Cluster) -> anyhow::Result<()> {
        let mut clock = Clock::default();
        self.in_memory(cluster, &mut clock)?;
        let each = clock.nanos.into_iter();
        let each: BTreeMap<Step, u64> = each
            .map(|(step, nanos)| (step, nanos / u64::from(self.changes)))
            .collect();
        println!("{}", serde_json::to_string(&each)?);
        Ok(())
    }

    fn on_kernel(&self, cluster: Cluster) -> anyhow::Result<()> {
        let linux = Linux::open(ServiceAddresses::Routes)?;
        let mut node = Node::start(linux, cluster)?;
        node::live(&mut node, cluster, self.changes, &mut Marker)?;
        calls::mark(READ_BACK);
        node.read_back()?;
        calls::mark(BETWEEN);
        Ok(())
    }

    fn calls(&self, missed: &mut Vec<String>) -> anyhow::Result<()> {
        println!(
            "system calls, Linux {} (targets: at most 4 over netlink per change; \
             reading back writes nothing)\n\n{:>8}  {:<9}  {:>7}  {:>5}  by name",
            lab::kernel_release(),
            "services",
            "endpoint",
            "netlink",
            "all",
        );
        for &services in &self.services {
            let program = self.role("on-kernel", services, 10)?;
            let counted = lab::in_fresh_network(|| {
                memory::add_node_address()?;
                calls::count(&program)
            })??;
            for step in Step::ALL {
                let calls = counted.get(step.name()).context("a step is missing")?;
                println!(
                    "{services:>8}  {:<9}  {:>7}  {:>5}  of {} times: {calls}",
                    step.name(),
                    tenths(calls.netlink * 10 / calls.times),
                    tenths(calls.all() * 10 / calls.times),
                    calls.times,
                );
                // When a destination without connections is deleted matters to nobody.
                if step != Step::Forgotten && calls.netlink > calls.times * MAX_CALLS {
                    missed.push(format!("{} takes many system calls", step.name()));
                }
            }
            let read_back = counted.get(READ_BACK).context("reading back is missing")?;
            println!(
                "{services:>8}  read back: {} messages over netlink, of which {} are requests other \
                 than for a whole table; {read_back}",
                read_back.netlink, read_back.other_requests,
            );
        }
        println!();
        Ok(())
    }

    fn memory(&self, missed: &mut Vec<String>) -> anyhow::Result<()> {
        let cluster = self.cluster(self.memory_services);
        let program = self.program()?;
        let figures = lab::in_fresh_network(|| memory::measure(&program, cluster))??;
        println!(
            "memory of the daemon, {} Services x {} endpoints, Linux {} (target: below 60 MB)\n",
            cluster.services,
            cluster.endpoints,
            lab::kernel_release(),
        );
        if figures.settled.resident * 1024 > MAX_RESIDENT {
            missed.push("more than 60 MB are resident".to_owned());
        }
        for (when, memory) in [
            ("programmed", figures.started),
            ("read back", figures.settled),
        ] {
            let Memory {
                resident,
                anonymous,
                peak,
            } = memory;
            let per_endpoint = anonymous * 1024 / cluster.all_endpoints().max(1);
            println!(
                "{when:>12}  resident {}, of which data {}; peak {}; data per endpoint \
                 {per_endpoint} bytes",
                megabytes(resident),
                megabytes(anonymous),
                megabytes(peak),
            );
        }
        Ok(())
    }

    fn start(&self, missed: &mut Vec<String>) -> anyhow::Result<()> {
        let cluster = self.cluster(self.start_services);
        let start = lab::in_fresh_network(|| {
            memory::add_node_address()?;
            start::measure(cluster)
        })??;
        let share = start.api_service.as_micros() * 1000 / start.whole.as_micros().max(1);
        println!(
            "first programming of {} Services x {} endpoints, Linux {}: {} ms; a client can \
             connect to default/kubernetes after {} us, {} % (target: 5 %)\n",
            cluster.services,
            cluster.endpoints,
            lab::kernel_release(),
            start.whole.as_millis(),
            start.api_service.as_micros(),
            tenths(u64::try_from(share)?),
        );
        if share > MAX_START {
            missed.push("the API server's Service waits for the others".to_owned());
        }
        Ok(())
    }

    fn program(&self) -> anyhow::Result<PathBuf> {
        match &self.proxier {
            Some(path) => Ok(path.clone()),
            None => Ok(std::env::current_exe()
                .context("finding this program")?
                .with_file_name("ipvs-proxier")),
        }
    }
}

/// Looks away. Rustix finds the clock in a way that valgrind does not bear.
struct Nobody;

impl Observer for Nobody {
    fn observe(
        &mut self,
        _: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        work()
    }
}

/// Adds up this thread's CPU time, the kernel's share included.
#[derive(Default)]
struct Clock {
    nanos: BTreeMap<Step, u64>,
}

impl Observer for Clock {
    fn observe(
        &mut self,
        step: Step,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let start = thread_nanos();
        work()?;
        *self.nanos.entry(step).or_default() += thread_nanos() - start;
        Ok(())
    }
}

fn thread_nanos() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // CPU times are not negative.
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or_default()
}

/// Marks the steps in the trace of system calls.
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

/// A name for a temporary file. Labs share the file system, and number their processes alike.
fn temporary(what: &str) -> PathBuf {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let name = format!(
        "bench-engine-{what}-{}-{}",
        std::process::id(),
        since.as_nanos()
    );
    std::env::temp_dir().join(name)
}

/// KiB as megabytes of a million bytes.
fn megabytes(kib: u64) -> String {
    tenths(kib * 1024 / 100_000) + " MB"
}

fn tenths(number: u64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

/// Two digits after the point.
fn ratio(number: u64, one: u64) -> String {
    let hundredths = number * 100 / one.max(1);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
