//! A User-Mode Linux kernel as a child process, and the jobs in it.
//!
//! ```text
//!   this process                                 the kernel (a process group of its own)
//!   ────────────                                 ───────────────────────────────────────
//!   Machine ── frames ── socket pair ── fd 0 ──── /dev/ttyS0 ──── agent ──── jobs
//!   Log     ◀─ text ──── pipe ───────── fd 1, 2 ─ console, panics
//! ```
//!
//! The kernel runs as long as the socket is open. When this process ends for any reason, the serial
//! line hangs up, and the `warden` kills the kernel.

use std::{
    env,
    ffi::OsString,
    io::{PipeWriter, Write, stderr},
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
mod preload;
mod processor;
mod running;
pub(crate) mod warden;

pub(crate) use self::greeting::Greeting;
use self::{line::Line, log::Log, processor::Claim};
pub use self::{
    memory::Memory,
    running::{Control, Event, Input, NoEvent, Running},
};

/// The machine to boot.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path of the kernel, an executable file.
    pub kernel: PathBuf,
    /// The main memory of the guest.
    pub memory: Memory,
    /// The number of the guest's processors. More than one needs a kernel with `ncpus=`, which 6.1
    /// lacks.
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
    /// Boots a kernel and waits until it accepts jobs.
    ///
    /// # Errors
    ///
    /// If the host lacks the kernel's file, memory or a processor. If the kernel ends or does not
    /// boot within three minutes, the error has the end of its console.
    pub fn boot(config: &Config) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("making a socket pair")?;
        let (log, log_writer) = Log::open().context("making a pipe for kernel messages")?;
        let processor = match config.cpus {
            1 => Some(Claim::new(&config.kernel)?),
            _ => None,
        };
        let child = spawn(config, processor.as_ref(), theirs, log_writer)?;
        let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
            bail!("the kernel has no process id");
        };
        let mut machine = Self {
            greeting: Greeting::default(),
            line: Arc::new(Line::new(ours.try_clone().context("copying a socket")?)),
            log,
            child: Mutex::new(child),
            group,
            next_job: AtomicU32::new(1),
            _processor: processor,
        };
        let booted = machine.listen(ours)?;
        machine.await_end()?;
        match booted.recv_timeout(BOOT_TIMEOUT) {
            Ok(greeting) => {
                machine.greeting = greeting;
                machine.warn_if_slow();
                Ok(machine)
            }
            Err(RecvTimeoutError::Disconnected) => Err(machine.failure("died while booting")),
            Err(RecvTimeoutError::Timeout) => {
                machine.kill();
                Err(machine.failure("did not boot within three minutes"))
            }
        }
    }

    /// Starts the thread that reads frames from the kernel. Returns where its greeting arrives.
    fn listen(&self, socket: UnixStream) -> Result<mpsc::Receiver<Greeting>> {
        let (ready, booted) = mpsc::channel();
        let (line, group) = (Arc::clone(&self.line), self.group);
        thread::Builder::new()
            .name("lab-line".into())
            .spawn(move || {
                // An error on the line means the same as its end: the kernel has ended, or it hangs and is of
                // no more use.
                let _broken = line.listen(socket, silence(), &ready);
                line.close();
                if line.is_silent() {
                    let _gone = kill_process_group(group, Signal::KILL);
                }
            })
            .context("starting a thread")?;
        Ok(booted)
    }

    /// Starts the thread that hangs up the line when the kernel has ended.
    fn await_end(&self) -> Result<()> {
        let (line, group) = (Arc::clone(&self.line), self.group);
        thread::Builder::new()
            .name("lab-kernel".into())
            .spawn(move || {
                // NOWAIT keeps the zombie, so no other process gets the id before the group is
                // killed.
                let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                let _status = waitid(WaitId::Pid(group), ended);
                // Helpers can outlive the kernel (6.1 after SIGKILL) and keep the line open.
                let _none_left = kill_process_group(group, Signal::KILL);
                line.hang_up();
            })
            .context("starting a thread")?;
        Ok(())
    }

    /// Returns the kernel's release, as `uname -r` prints it.
    pub fn release(&self) -> &str {
        &self.greeting.release
    }

    /// Returns the cost of a system call in the guest, measured when it booted.
    pub fn syscall_cost(&self) -> Duration {
        self.greeting.syscall_cost
    }

    /// Returns whether the kernel was killed because it gave no sign of life.
    pub fn has_hung(&self) -> bool {
        self.line.is_silent()
    }

    /// Returns the process group of the kernel; killing it ends the machine.
    pub fn process_group(&self) -> Pid {
        self.group
    }

    /// Starts `job`. Any number of jobs may run at a time.
    ///
    /// # Errors
    ///
    /// If the kernel has ended, or the job (arguments and environment) is larger than a megabyte. A
    /// missing program is not an error here: the job ends with status 127 and a line on its stderr.
    pub fn start(&self, job: &Job) -> Result<Running> {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        let Some(running) = Running::new(id, &self.line) else {
            return Err(self.failure("died"));
        };
        self.line
            .send(&Frame::new(id, Kind::Start, job.encode()))
            .with_context(|| format!("starting {} in the lab", job.argv[0].display()))?;
        Ok(running)
    }

    /// Switches the guest off, after it has written all data back to the host's files.
    ///
    /// # Errors
    ///
    /// If the kernel does not end by itself within 60 seconds. It is killed then.
    pub fn power_off(self) -> Result<()> {
        // If the line is broken, the kernel is ending already.
        let _gone = self.line.send(&Frame::new(0, Kind::PowerOff, []));
        let deadline = Instant::now() + POWER_OFF_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = lock(&self.child).try_wait()? {
                if status.success() {
                    return Ok(());
                }
                return Err(self.failure("died while switching off"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("the kernel did not switch itself off within 60 seconds and was killed")
    }

    /// Returns an error with the kernel's exit status and the end of its console.
    ///
    /// It begins with "the lab kernel `how`".
    pub fn failure(&self, how: &str) -> anyhow::Error {
        // The line breaks shortly before the process ends and its console is complete.
        let deadline = Instant::now() + Duration::from_secs(2);
        let mut status = None;
        while status.is_none() && Instant::now() < deadline {
            status = lock(&self.child).try_wait().ok().flatten();
            thread::sleep(Duration::from_millis(5));
        }
        let status = status.map_or_else(|| "still running".into(), |status| status.to_string());
        anyhow!(
            "the lab kernel {how} ({status}); the end of its console:\n{}",
            self.log.tail()
        )
    }

    fn warn_if_slow(&self) {
        if self.syscall_cost() > cost::BAD_SYSCALL_COST {
            // Written to the handle: libtest captures what a passing test prints by a macro.
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
        // After the child was waited for, its id may belong to another process.
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

/// Starts the kernel's process, with these ends of its serial line and of its console.
fn spawn(
    config: &Config,
    processor: Option<&Claim>,
    line: UnixStream,
    console: PipeWriter,
) -> Result<Child> {
    let mut command = warden::command(config, &boot_line::arguments(config)?)?;
    command
        .env(warden::MEMORY, memory::directory(config.memory)?)
        .current_dir(env::var_os(DIRECTORY).unwrap_or_else(|| "/".into()))
        // A group of its own: a signal to the group reaches the kernel and all its helpers, and
        // Ctrl-C at a terminal does not.
        .process_group(0)
        .stdin(OwnedFd::from(line))
        .stderr(console);
    let spawned = match processor {
        Some(processor) => processor.run(|| command.spawn())?,
        None => command.spawn(),
    };
    // The command holds copies of the kernel's ends of socket and pipe until it is dropped here. While
    // the copies are open, our ends do not report the kernel's end.
    spawned.with_context(|| format!("starting the kernel {}", config.kernel.display()))
}

/// Returns the time without a sign of life after which a kernel hangs: `LAB_SILENCE` seconds, or a default.
fn silence() -> Duration {
    let seconds = env::var(SILENCE).ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    seconds.map_or(LONGEST_SILENCE, Duration::from_secs)
}

/// Locks `mutex`, even if a thread panicked while it held the lock.
///
/// The guarded data is consistent after every statement, so a panic cannot leave it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The variable that names the working directory of the kernel's processes on the host.
///
/// It has no effect on the guest. `./check` names a new directory and later looks for processes
/// that still have it. A kernel's helpers cannot be found otherwise: they have neither the kernel's
/// arguments nor its environment.
const DIRECTORY: &str = "LAB_DIRECTORY";
/// The limit for a boot, which takes half a second on an idle host. A busy one may leave it without a processor
/// for half a minute.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
const SILENCE: &str = "LAB_SILENCE";
/// A guest gives a sign of life every 2 s, unless a system call in it takes longer: it has one processor.
const LONGEST_SILENCE: Duration = Duration::from_secs(150);
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(60);
