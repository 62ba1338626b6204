//! The kernel's process, and the warden: a process that kills the kernel when its owner ends.
//!
//! ```text
//!   owner ── this program ── exec ── kernel        one process group: the kernel leads it, because
//!                         └─ warden   └─ helpers   only then its setsid(2) fails and keeps it there
//! ```
//!
//! The guest ends its kernel when its serial line hangs up, but a guest that hangs cannot.
//! Killing the kernel's process alone is not enough: 6.1 leaves behind the processes that ran the
//! guest's programs. They are no longer traced then and continue to run on the host.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{stderr, stdin},
    os::{
        fd::AsFd,
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Resource, Rlimit, Signal, getpgrp, kill_process_group, setrlimit},
};

use super::{Config, preload};
use crate::guest;

/// Returns the command that becomes the kernel of `config` with these `arguments`.
///
/// Its stdin becomes the kernel's serial line, its stderr the kernel's console. It must lead a
/// process group.
pub(super) fn command(config: &Config, arguments: &[OsString]) -> Result<Command> {
    let [program, rest @ ..] = config.init.as_slice() else {
        bail!("no program to be process 1 of the lab");
    };
    let mut command = Command::new(program);
    command
        .args(rest)
        .env_clear()
        .env(guest::ROLE, KERNEL)
        .env(PATH, &config.kernel)
        .env(ARGUMENTS, arguments.join(OsStr::new("\n")))
        .env(LIBRARIES, preload::libraries()?)
        // If the program is a test, libtest writes to stdout.
        .stdout(Stdio::null());
    Ok(command)
}

/// Starts the warden, then becomes the kernel.
///
/// # Errors
///
/// The warden or the kernel cannot be started.
pub(crate) fn become_kernel() -> Result<()> {
    let kernel = env::var_os(PATH).context("no kernel to run")?;
    let arguments = env::var_os(ARGUMENTS).context("no arguments for the kernel")?;
    let libraries = env::var_os(LIBRARIES).context("no libraries for the kernel")?;
    let arguments = arguments.as_bytes().split(|&byte| byte == b'\n');
    // A panic of the kernel ends in abort(3). Its core would be the whole memory of the guest.
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, no_core).context("forbidding core dumps of the kernel")?;
    let program = env::current_exe().context("finding this program")?;
    Command::new(program)
        .args(env::args_os().skip(1))
        .env_clear()
        .env(guest::ROLE, WARDEN)
        .spawn()
        .context("starting the kernel's warden")?;
    let console = stderr().as_fd().try_clone_to_owned()?;
    let failed = Command::new(&kernel)
        .args(arguments.map(OsStr::from_bytes))
        .env_clear()
        .envs(env::var_os(MEMORY).map(|directory| (MEMORY, directory)))
        .env("LD_PRELOAD", libraries)
        .stdout(console)
        .exec();
    Err(failed).with_context(|| format!("starting the kernel {}", kernel.display()))
}

/// Waits until the other end of stdin is closed, then kills this process's group.
///
/// # Errors
///
/// Waiting or killing failed.
pub(crate) fn guard() -> Result<()> {
    let line = stdin();
    loop {
        // The kernel reads the line, so this process polls for no event. A hang-up is reported
        // anyway.
        let mut watched = [PollFd::new(&line, PollFlags::empty())];
        match poll(&mut watched, None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for the end of the kernel's owner"),
        }
    }
    kill_process_group(getpgrp(), Signal::KILL).context("killing the kernel")
}

/// The value of [`guest::ROLE`] for the process that becomes the kernel.
pub(crate) const KERNEL: &str = "kernel";
/// The value of [`guest::ROLE`] for the warden.
pub(crate) const WARDEN: &str = "warden";
/// The variable with the path of the kernel.
const PATH: &str = "LAB_BOOT_KERNEL";
/// The variable with the kernel's arguments, one a line.
const ARGUMENTS: &str = "LAB_BOOT_ARGUMENTS";
/// The variable with the libraries that the kernel loads.
const LIBRARIES: &str = "LAB_BOOT_LIBRARIES";
/// The variable by which User-Mode Linux finds the directory of its memory file.
pub(super) const MEMORY: &str = "TMPDIR";
