//! `lab run`: one command inside, as if it ran here.

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
    machine::{Event, Running, Silence},
};

use crate::{boot, interrupt};

/// Run a command inside
///
/// It has this directory, this environment and stdin, and no terminal; stdout, stderr and the exit
/// status are the command's (128 + n after signal n, 127 not found, 124 out of time, 125 when the
/// lab failed). The kernel ends with the command.
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
        // Counted from here: building and booting a kernel are not the command's time.
        let deadline = self
            .timeout
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));

        let mut running = machine.start(&job)?;
        if let Some(input) = running.input() {
            thread::Builder::new()
                .name("stdin".into())
                // A job that ends before its input does is no failure, and a closed stdin is empty.
                .spawn(move || input.copy(&mut stdin().lock()))
                .context("starting a thread")?;
        }
        let status = match relay(&running, deadline) {
            Ok(Some(status)) => status,
            Ok(None) => {
                let seconds = self.timeout.unwrap_or_default();
                eprintln!("lab: out of time after {seconds} s");
                return Ok(ExitCode::from(TIMED_OUT));
            }
            Err(Broken::Kernel) => return Err(machine.obituary("died")),
            Err(Broken::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
                return Ok(ExitCode::from(BROKEN_PIPE));
            }
            Err(Broken::Output(error)) => bail!("passing output on: {error}"),
        };
        if let Err(error) = machine.power_off() {
            eprintln!("lab: {error:#}");
        }
        Ok(ExitCode::from(status))
    }
}

/// Why a command's output went nowhere.
pub(crate) enum Broken {
    Kernel,
    Output(io::Error),
}

/// Copies output until the job ends; gives its status, or nothing at the deadline.
pub(crate) fn relay(running: &Running, deadline: Option<Instant>) -> Result<Option<u8>, Broken> {
    loop {
        let written = match running.next(deadline) {
            Ok(Event::Stdout(bytes)) => write_all(&mut stdout().lock(), &bytes),
            Ok(Event::Stderr(bytes)) => write_all(&mut stderr().lock(), &bytes),
            Ok(Event::Exit(status)) => return Ok(Some(u8::try_from(status).unwrap_or(u8::MAX))),
            Err(Silence::Timeout) => return Ok(None),
            Err(Silence::Dead) => return Err(Broken::Kernel),
        };
        written.map_err(Broken::Output)?;
    }
}

fn write_all(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// As of timeout(1).
const TIMED_OUT: u8 = 124;
/// What a shell reports for a process that SIGPIPE ended.
const BROKEN_PIPE: u8 = 141;
