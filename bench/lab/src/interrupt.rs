//! Signals that end this program end the kernel first.

use std::{process::exit, thread};

use anyhow::{Context, Result};
use rustix::process::{Signal, kill_process_group};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};

use lab::machine::Machine;

/// Makes Ctrl-C, SIGHUP and SIGTERM kill `machine` and end this program with status 128 + n.
pub(crate) fn end_with(machine: &Machine) -> Result<()> {
    let group = machine.process_group();
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("registering signal handlers")?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _gone = kill_process_group(group, Signal::KILL);
                exit(128 + signal);
            }
        })
        .context("starting a thread")?;
    Ok(())
}
