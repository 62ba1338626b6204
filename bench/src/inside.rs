//! Runs this program again inside a lab kernel.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use lab::job::Job;
use lab::kernel;
use lab::machine::{Config, Event, Machine, Memory, NoEvent};

/// The environment variable that marks the process inside the lab.
const INSIDE: &str = "BENCH_INSIDE";

/// Returns whether this process runs inside the lab.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs `work` if this process runs inside the lab; otherwise runs this program again there.
pub(crate) fn run(
    memory: &str,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    if !is_inside() {
        return rerun(memory);
    }
    work()?;
    Ok(ExitCode::SUCCESS)
}

/// Boots the lab kernel with `memory` and runs this program inside with the same arguments.
///
/// Returns its exit code. Its standard output and standard error are forwarded.
pub(crate) fn rerun(memory: &str) -> anyhow::Result<ExitCode> {
    let kernel = kernel::find_or_build()?;
    let memory = memory.parse().map_err(anyhow::Error::msg)?;
    let status = rerun_on(kernel, memory, &mut |bytes| {
        Ok(std::io::stdout().write_all(bytes)?)
    })?;
    Ok(ExitCode::from(status))
}

/// Boots `kernel` and runs this program inside with the same arguments.
///
/// Returns its exit code. `output` gets its standard output in pieces; its standard error is forwarded.
pub(crate) fn rerun_on(
    kernel: PathBuf,
    memory: Memory,
    output: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let program = std::env::current_exe()
        .context("finding this program")?
        .into_os_string();
    let machine = Machine::boot(&Config {
        kernel,
        memory,
        cpus: 1,
        init: vec![program.clone()],
    })?;
    eprintln!("in the lab: Linux {}", machine.release());
    let arguments: Vec<OsString> = std::iter::once(program)
        .chain(std::env::args_os().skip(1))
        .collect();
    let mut job = Job::here(arguments)?;
    job.env.push((INSIDE.into(), "1".into()));
    let running = machine.start(&job)?;
    let status = loop {
        match running.next(None) {
            Ok(Event::Stdout(bytes)) => output(&bytes)?,
            Ok(Event::Stderr(bytes)) => std::io::stderr().write_all(&bytes)?,
            Ok(Event::Exit(status)) => break status,
            Err(NoEvent::KernelEnded) => return Err(machine.failure("died")),
            Err(NoEvent::Timeout) => bail!("the lab kernel stopped responding"),
        }
    };
    machine.power_off()?;
    Ok(u8::try_from(status).unwrap_or(u8::MAX))
}
