//! The programs of the lab that run on the guest kernel.
//!
//! ```text
//!  init     process 1: mounts file systems, reaps orphans, ends the kernel when the agent ends
//!   └ agent   reads and writes the serial line, starts jobs, copies their input and output
//!      └ jobs   (a job with a terminal starts as a `session`, which sets the controlling terminal)
//! ```
//!
//! Init and agent are two processes because both wait for children: init for any child, the agent for
//! its own. All roles, and the host's part, are one program. The variable `LAB_ROLE` names the role.

use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    process::{self, Command},
};

use anyhow::{Context, Result, bail};
use rustix::{
    process::{WaitOptions, getpid, getppid, ioctl_tiocsctty, setsid, wait},
    stdio,
    system::{RebootCommand, reboot, sethostname},
};

mod agent;
mod job;
mod mounts;

use crate::{machine::warden, netlink};

/// The variable that names the role.
pub(crate) const ROLE: &str = "LAB_ROLE";
/// The value of [`ROLE`] for process 1.
pub(crate) const INIT: &str = "init";
const AGENT: &str = "agent";
const SESSION: &str = "session";

/// Runs the role that `LAB_ROLE` names and exits; returns at once if the variable is unset.
///
/// A program that serves as [`Config::init`](crate::machine::Config::init) calls this before
/// anything else.
pub fn play_role() {
    let Some(role) = env::var_os(ROLE) else {
        return;
    };
    if role == warden::KERNEL {
        exit_after(warden::become_kernel());
    }
    if role == warden::WARDEN {
        exit_after(warden::guard());
    }
    let init = Some(rustix::process::Pid::INIT);
    if role == INIT && Some(getpid()) == init {
        end_kernel(be_init())
    }
    if role == AGENT && getppid() == init {
        exit_after(agent::serve());
    }
    if role == SESSION {
        exit_after(be_session());
    }
}

fn exit_after(result: Result<()>) -> ! {
    if let Err(error) = &result {
        eprintln!("lab: {error:#}");
    }
    process::exit(i32::from(result.is_err()))
}

/// Why the agent has ended.
enum End {
    /// The host asked the guest to switch off.
    Asked,
    /// The serial line is broken.
    HostIsGone,
}

/// Prepares the system, and returns when the agent has ended.
fn be_init() -> Result<End> {
    mounts::all()?;
    sethostname(b"lab").context("naming the host")?;
    netlink::bring_loopback_up().context("bringing lo up")?;
    let program = env::current_exe().context("finding this program")?;
    let agent = Command::new(program)
        .args(env::args_os().skip(1))
        .env(ROLE, AGENT)
        .spawn()
        .context("starting the agent")?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().unsigned_abs() == agent.id() => {
                return Ok(match status.exit_status() {
                    Some(0) => End::Asked,
                    _ => End::HostIsGone,
                });
            }
            Ok(_orphan) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for the agent"),
        }
    }
}

/// Switches off, or lets the kernel panic if the host is gone.
///
/// After a hang-up of the serial line, Linux 7.2 may be unable to switch off: the handler of SIGIO frees the line's
/// interrupt, for which `irq_work_sync` waits for an RCU grace period, in the thread that the signal interrupted. If
/// that is `rcu_sched`, which ends grace periods, none ends any more, and switching off waits for one.
fn end_kernel(end: Result<End>) -> ! {
    // The guest's page cache may hold data that is not in the host's files yet.
    rustix::fs::sync();
    if !matches!(end, Ok(End::HostIsGone)) {
        if let Err(error) = end {
            eprintln!("lab: {error:#}");
        }
        let refused = reboot(RebootCommand::PowerOff);
        eprintln!("lab: the kernel refuses to switch off: {refused:?}");
    }
    // The kernel panics when process 1 ends, and the panic ends the kernel.
    process::exit(1)
}

/// Makes stdin the controlling terminal, then executes the command in the arguments.
fn be_session() -> Result<()> {
    let mut command = env::args_os().skip(1);
    let Some(program) = command.next() else {
        bail!("no command for the terminal");
    };
    setsid().context("starting a session")?;
    ioctl_tiocsctty(stdio::stdin()).context("setting the controlling terminal")?;
    let arguments: Vec<OsString> = command.collect();
    let failed = Command::new(&program)
        .args(arguments)
        .env_remove(ROLE)
        .exec();
    Err(failed).with_context(|| program.display().to_string())
}
