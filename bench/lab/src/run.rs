//! `lab run`: one command in the guest, as if it ran here.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, Write, stderr, stdin, stdout},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use lab::{
    job::Job,
    machine::{Event, NoEvent, Running},
};

use crate::{boot, interrupt};

/// Run a command in a lab kernel
///
/// The command gets this directory, this environment and stdin, but no terminal. stdout, stderr and
/// the exit status are the command's: 128 + n after signal n, 127 if it was not found, 124 after
/// --timeout, 125 if the lab failed. The kernel ends with the command.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    boot: boot::Options,
    /// End everything after this many seconds, with status 124
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let job = Job::here(self.command)?;
        let machine = self.boot.boot()?;
        interrupt::end_with(&machine)?;
        // The time to build and boot a kernel does not count.
        let deadline = self
            .timeout
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));

        let mut running = machine.start(&job)?;
        forward_input(&mut running)?;
        let status = match relay(&running, deadline) {
            Ok(Some(status)) => status,
            Ok(None) => {
                let seconds = self.timeout.unwrap_or_default();
                eprintln!("lab: the command was killed after {seconds} s (--timeout)");
                return Ok(ExitCode::from(TIMED_OUT));
            }
            Err(Broken::Kernel) => return Err(machine.failure("died")),
            Err(Broken::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
                return Ok(ExitCode::from(BROKEN_PIPE));
            }
            Err(Broken::Output(error)) => bail!("writing the command's output: {error}"),
        };
        if let Err(error) = machine.power_off() {
            eprintln!("lab: {error:#}");
        }
        Ok(ExitCode::from(status))
    }
}

/// Starts a thread that copies this program's stdin to the job.
pub(crate) fn forward_input(running: &mut Running) -> Result<()> {
    if let Some(input) = running.input() {
        thread::Builder::new()
            .name("stdin".into())
            // An error is ignored: a job may end before its input, and a closed stdin is empty.
            .spawn(move || input.copy(&mut stdin().lock()))
            .context("starting a thread")?;
    }
    Ok(())
}

/// Why the output of a command ended early.
pub(crate) enum Broken {
    Kernel,
    Output(io::Error),
}

/// Copies output until the job ends. Returns its exit status, or `None` at the deadline.
pub(crate) fn relay(running: &Running, deadline: Option<Instant>) -> Result<Option<u8>, Broken> {
    loop {
        let written = match running.next(deadline) {
            Ok(Event::Stdout(bytes)) => write_all(&mut stdout().lock(), &bytes),
            Ok(Event::Stderr(bytes)) => write_all(&mut stderr().lock(), &bytes),
            Ok(Event::Exit(status)) => return Ok(Some(u8::try_from(status).unwrap_or(u8::MAX))),
            Err(NoEvent::Timeout) => return Ok(None),
            Err(NoEvent::KernelEnded) => return Err(Broken::Kernel),
        };
        written.map_err(Broken::Output)?;
    }
}

fn write_all(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// The same as timeout(1) uses.
const TIMED_OUT: u8 = 124;
/// The status that a shell reports after SIGPIPE.
const BROKEN_PIPE: u8 = 141;
