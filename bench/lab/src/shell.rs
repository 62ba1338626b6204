//! `lab shell`: an interactive shell in the guest.

use std::{
    env,
    ffi::OsString,
    io::{IsTerminal, stdin},
    process::ExitCode,
    thread,
};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::{
    stdio,
    termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use signal_hook::{consts::SIGWINCH, iterator::Signals};

use lab::{
    job::{Job, TerminalSize},
    machine::Control,
};

use crate::{
    boot, interrupt,
    run::{Broken, forward_input, relay},
};

/// Open an interactive shell in a lab kernel
///
/// The shell is $SHELL, else /bin/sh. Leaving it ends the kernel.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    boot: boot::Options,
    /// A program to run on the terminal instead of the shell
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if !stdin().is_terminal() {
            bail!("stdin is not a terminal; use `lab run`");
        }
        let command = match self.command {
            command if !command.is_empty() => command,
            _ => vec![env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())],
        };
        let mut job = Job::here(command)?;
        job.terminal = Some(size()?);

        let machine = self.boot.boot()?;
        interrupt::end_with(&machine)?;
        eprintln!(
            "lab: Linux {} with the files of this machine and a network of its own; Ctrl-D ends it",
            machine.release()
        );
        let raw = RawTerminal::enter()?;
        let mut running = machine.start(&job)?;
        follow_size(running.control())?;
        forward_input(&mut running)?;
        let end = relay(&running, None);
        drop(raw);
        match end {
            Ok(status) => {
                if let Err(error) = machine.power_off() {
                    eprintln!("lab: {error:#}");
                }
                Ok(ExitCode::from(status.unwrap_or_default()))
            }
            Err(Broken::Kernel) => Err(machine.failure("died")),
            Err(Broken::Output(error)) => Err(error).context("writing to the terminal"),
        }
    }
}

/// The user's terminal in raw mode; dropping it restores the previous mode.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn enter() -> Result<Self> {
        let before = tcgetattr(stdio::stdin()).context("reading the terminal's mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdio::stdin(), OptionalActions::Flush, &raw)
            .context("setting the terminal's mode")?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Fails only if the terminal was closed.
        let _gone = tcsetattr(stdio::stdin(), OptionalActions::Flush, &self.before);
    }
}

fn size() -> Result<TerminalSize> {
    let size = tcgetwinsize(stdio::stdin()).context("reading the terminal's size")?;
    Ok(TerminalSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

/// Keeps the guest's terminal as large as the user's.
fn follow_size(control: Control) -> Result<()> {
    let mut signals = Signals::new([SIGWINCH]).context("registering signal handlers")?;
    thread::Builder::new()
        .name("size".into())
        .spawn(move || {
            for _ in signals.forever() {
                let resized = size().map(|size| control.resize(size));
                if !matches!(resized, Ok(Ok(()))) {
                    return;
                }
            }
        })
        .context("starting a thread")?;
    Ok(())
}
