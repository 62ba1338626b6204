//! A User-Mode Linux kernel as a child process, and the jobs that run inside it.
//!
//! ```text
//!   this process                                 the kernel (a process group of its own)
//!   ────────────                                 ───────────────────────────────────────
//!   Machine ── frames ── socket pair ── fd 0 ──── /dev/ttyS0 ──── agent ──── jobs
//!   Log     ◀─ text ──── pipe ───────── fd 1, 2 ─ console, panics
//! ```
//!
//! The kernel lives as long as the socket is open: when this process ends, however it ends, the
//! serial line hangs up and the guest switches itself off.

use std::{
    env,
    ffi::OsString,
    io::{Write, stderr},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::Child,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::{
    cost,
    job::Job,
    wire::{Frame, Kind},
};

mod boot_line;
mod greeting;
mod line;
mod log;
mod memory;
mod processor;
mod running;
pub(crate) mod warden;

pub(crate) use self::greeting::Greeting;
use self::{line::Line, log::Log, processor::Claim};
pub use self::{
    memory::Memory,
    running::{Control, Event, Input, Running, Silence},
};

/// What to boot.
#[derive(Clone, Debug)]
pub struct Config {
    /// The kernel, an executable file.
    pub kernel: PathBuf,
    /// Main memory of the guest.
    pub memory: Memory,
    /// Processors of the guest. More than one needs a kernel that has `ncpus=` (6.1 has not).
    pub cpus: u8,
    /// Process 1 of the guest and its arguments: a program that calls
    /// [`guest::play_role`](crate::guest::play_role).
    pub init: Vec<OsString>,
}

/// A running kernel. Dropping it ends the kernel at once.
#[derive(Debug)]
pub struct Machine {
    greeting: Greeting,
    line: Arc<Line>,
    log: Log,
    child: Mutex<Child>,
    group: Pid,
    next_job: AtomicU32,
    /// `None` for a machine with several processors.
    _processor: Option<Claim>,
}

impl Machine {
    /// Boots a kernel and waits until it takes jobs.
    ///
    /// # Errors
    ///
    /// Names what is missing on the host; or, when the kernel dies or hangs, its last words.
    pub fn boot(config: &Config) -> Result<Self> {
        let arguments = boot_line::arguments(config)?;
        let directory = memory::directory(config.memory)?;
        let (ours, theirs) = UnixStream::pair().context("making a socket pair")?;
        let (log, log_writer) = Log::open().context("making a pipe for kernel messages")?;

        let mut command = warden::command(config, &arguments)?;
        command
            .env(warden::MEMORY, directory)
            .current_dir(env::var_os(DIRECTORY).unwrap_or_else(|| "/".into()))
            // A group of its own: a signal to the group reaches the kernel and all its helpers, and
            // Ctrl-C at a terminal does not.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stderr(log_writer);
        let processor = match config.cpus {
            1 => Some(Claim::new()?),
            _ => None,
        };
        let spawned = match &processor {
            Some(processor) => processor.run(|| command.spawn())?,
            None => command.spawn(),
        };
        let child =
            spawned.with_context(|| format!("starting the kernel {}", config.kernel.display()))?;
        // The command keeps our copies of the kernel's ends; while they are open, none of them
        // tells us that the kernel is gone.
        drop(command);
        let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
            bail!("the kernel has no process id");
        };
        let (ready, booted) = mpsc::channel();
        let line = Arc::new(Line::new(ours.try_clone().context("copying a socket")?));
        let mut machine = Self {
            greeting: Greeting::default(),
            line: Arc::clone(&line),
            log,
            child: Mutex::new(child),
            group,
            next_job: AtomicU32::new(1),
            _processor: processor,
        };
        thread::Builder::new()
            .name("lab-line".into())
            .spawn(move || {
                // A line that breaks and a line that ends mean the same: the kernel is gone.
                let _broken = line.listen(ours, &ready);
                line.close();
            })
            .context("starting a thread")?;
        let line = Arc::clone(&machine.line);
        thread::Builder::new()
            .name("lab-kernel".into())
            .spawn(move || {
                // Left for the machine to wait for: until then nobody else gets its id.
                let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                let _status = waitid(WaitId::Pid(group), ended);
                // The kernel's helpers can outlive it (6.1 after SIGKILL), and hold the line open.
                let _none_left = kill_process_group(group, Signal::KILL);
                line.hang_up();
            })
            .context("starting a thread")?;
        match booted.recv_timeout(BOOT_TIMEOUT) {
            Ok(greeting) => {
                machine.greeting = greeting;
                machine.warn_if_slow();
                Ok(machine)
            }
            Err(RecvTimeoutError::Disconnected) => Err(machine.obituary("died while booting")),
            Err(RecvTimeoutError::Timeout) => {
                machine.kill();
                Err(machine.obituary("was not up after 60 seconds"))
            }
        }
    }

    /// The kernel's release, as `uname -r` says it.
    pub fn release(&self) -> &str {
        &self.greeting.release
    }

    /// The cost of a system call in the guest, measured at the end of its boot.
    pub fn syscall_cost(&self) -> Duration {
        self.greeting.syscall_cost
    }

    /// The process group of the kernel; killing it is the end of the machine.
    pub fn process_group(&self) -> Pid {
        self.group
    }

    /// Starts `job`. Any number may run at a time.
    ///
    /// # Errors
    ///
    /// The kernel is gone, or the job (arguments and environment) is larger than a megabyte.
    /// A program that does not exist is not an error here: the job ends with status 127, and says
    /// so on its error output.
    pub fn start(&self, job: &Job) -> Result<Running> {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let Some(running) = Running::new(id, &self.line) else {
            return Err(self.obituary("died"));
        };
        self.line
            .send(&Frame::new(id, Kind::Start, job.encode()))
            .with_context(|| format!("starting {} in the lab", job.argv[0].display()))?;
        Ok(running)
    }

    /// Switches the guest off, with everything it has written on its way to the host's files.
    ///
    /// # Errors
    ///
    /// The kernel did not end by itself within ten seconds; it is killed then.
    pub fn power_off(self) -> Result<()> {
        // A broken line is fine here: the wait tells.
        let _gone = self.line.send(&Frame::new(0, Kind::PowerOff, []));
        let deadline = Instant::now() + POWER_OFF_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = lock(&self.child).try_wait()? {
                if status.success() {
                    return Ok(());
                }
                return Err(self.obituary("died while switching off"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("the kernel did not switch itself off in 10 seconds and was killed")
    }

    /// An error that says that the kernel is gone and, as far as known, why: "the lab kernel `how`".
    pub fn obituary(&self, how: &str) -> anyhow::Error {
        // The line breaks a moment before the process is gone and its last words are written.
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut status = None;
        while status.is_none() && Instant::now() < deadline {
            status = lock(&self.child).try_wait().ok().flatten();
            thread::sleep(Duration::from_millis(5));
        }
        let status = status.map_or_else(|| "not ended".into(), |status| status.to_string());
        anyhow!(
            "the lab kernel {how} ({status}); its last words:\n{}",
            self.log.tail()
        )
    }

    fn warn_if_slow(&self) {
        if self.syscall_cost() > cost::BAD_SYSCALL_COST {
            // The handle, because libtest keeps what a passing test prints by a macro.
            let _closed = writeln!(
                stderr().lock(),
                "lab: slow: a system call on Linux {} takes {} microseconds instead of {}; tests take \
                 longer and wait longer",
                self.release(),
                self.syscall_cost().as_micros(),
                cost::NORMAL_SYSCALL_COST.as_micros(),
            );
        }
    }

    fn kill(&self) {
        let mut child = lock(&self.child);
        // Not after the child was waited for: its id may be another's by then.
        if let Ok(None) = child.try_wait() {
            let _gone = kill_process_group(self.group, Signal::KILL);
            let _reaped = child.wait();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Every lock here guards plain data that is right between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The variable that names the working directory of the kernel's processes, which has no effect on
/// the guest. By a directory of its own `./check` recognizes the processes that its tests left: the
/// helpers of a kernel have neither its arguments nor its environment.
const DIRECTORY: &str = "LAB_DIRECTORY";
/// From start to taking jobs; half a second on an idle machine.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(60);
