//! The machines that the tests of this process share.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::{Write, stderr},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    transcript::{Stream, Transcript},
    verdict,
};
use crate::{
    cost,
    job::Job,
    machine::{Config, Event, Machine, Memory, NoEvent},
};

/// A test that runs on the machine of one kernel; dropping it ends the turn.
struct Turn<'a> {
    kernel: &'a Path,
}

/// The number of this process's tests on the machine of each kernel.
static RUNNING: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

/// Wakes up tests that wait for a turn.
static ENDED: Condvar = Condvar::new();

impl<'a> Turn<'a> {
    /// Waits until fewer than `at_once` tests run on the machine of `kernel`.
    fn take(kernel: &'a Path, at_once: usize) -> Self {
        let is_full = |running: &mut BTreeMap<PathBuf, usize>| {
            running.get(kernel).copied().unwrap_or_default() >= at_once
        };
        let free = ENDED.wait_while(running(), is_full);
        let mut running = free.unwrap_or_else(PoisonError::into_inner);
        *running.entry(kernel.to_owned()).or_default() += 1;
        Self { kernel }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *running().entry(self.kernel.to_owned()).or_default() -= 1;
        ENDED.notify_all();
    }
}

fn running() -> MutexGuard<'static, BTreeMap<PathBuf, usize>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the test called `name` on the machine of `kernel`, and prints its output.
///
/// At most `at_once` tests of this process run on one machine at the same time. If the kernel hangs, the
/// test runs again on a new machine, once.
///
/// # Errors
///
/// If the test fails, with the reason and the output.
pub(super) fn run(kernel: &Path, name: &str, at_once: usize) -> Result<(), String> {
    let _turn = Turn::take(kernel, at_once);
    let slot = slot(kernel);
    let result = run_on(&slot, kernel, name);
    let has_hung =
        |machine: &Result<Machine, String>| machine.as_ref().is_ok_and(Machine::has_hung);
    let Err(report) = &result else { return result };
    if !slot.get().is_some_and(has_hung) {
        return result;
    }
    replace(kernel, &slot);
    // Written to the handle: libtest captures what a passing test prints by a macro.
    let _closed = writeln!(
        stderr().lock(),
        "lab: {report}\nlab: {name} runs again on a new machine"
    );
    run_on(&self::slot(kernel), kernel, name)
}

fn run_on(slot: &Slot, kernel: &Path, name: &str) -> Result<(), String> {
    let machine = slot
        .get_or_init(|| boot(kernel, name).map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| format!("{name}: cannot boot {}: {error}", kernel.display()))?;
    // The cost of a system call shows whether the host is slow or the program wrong.
    let kernel = format!(
        "Linux {} ({}, {} microseconds a system call)",
        machine.release(),
        kernel.display(),
        machine.syscall_cost().as_micros(),
    );

    let end =
        run_inside(machine, name).map_err(|error| format!("{name} on {kernel}: {error:#}"))?;
    let output = verdict::without_frame(&end.output, name);
    match verdict::of(end.status, &end.output) {
        Ok(()) => {
            // libtest captures it, like the output of any test.
            eprint!("{output}");
            Ok(())
        }
        Err(reason) => Err(format!("{name} on {kernel} {reason}:\n{output}")),
    }
}

type Slot = Arc<OnceLock<Result<Machine, String>>>;

/// The slots for the machines by kernel.
///
/// A machine that works is never dropped. It ends with this process: the serial line hangs up then.
static FLEET: Mutex<BTreeMap<PathBuf, Slot>> = Mutex::new(BTreeMap::new());

fn slot(kernel: &Path) -> Slot {
    let mut fleet = FLEET.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(fleet.entry(kernel.to_owned()).or_default())
}

/// Replaces `hung` by an empty slot, unless another test has done so.
fn replace(kernel: &Path, hung: &Slot) {
    let mut fleet = FLEET.lock().unwrap_or_else(PoisonError::into_inner);
    if fleet
        .get(kernel)
        .is_some_and(|slot| Arc::ptr_eq(slot, hung))
    {
        fleet.remove(kernel);
    }
}

/// Boots `kernel` with this program as process 1.
///
/// Its arguments make libtest run the test `name`, which calls
/// [`play_role`](crate::guest::play_role).
fn boot(kernel: &Path, name: &str) -> Result<Machine> {
    let program = env::current_exe().context("finding the test binary")?;
    Machine::boot(&Config {
        kernel: kernel.to_owned(),
        memory: Memory::DEFAULT,
        cpus: 1,
        init: command(program, name),
    })
}

/// The end of a test in the guest.
struct End {
    status: Status,
    output: String,
}

/// The end of a test's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Exit(u32),
    Timeout(Duration),
}

fn run_inside(machine: &Machine, name: &str) -> Result<End> {
    let program = env::current_exe().context("finding the test binary")?;
    let mut job = Job::here(command(program, name))?;
    let cost = machine.syscall_cost().as_nanos().to_string();
    job.env.push((cost::VARIABLE.into(), cost.into()));
    let running = machine.start(&job)?;
    running.close_input().context("starting the test")?;

    let limit = time_limit(machine);
    let mut deadline = Instant::now() + limit;
    let mut is_killed = false;
    let mut output = Transcript::default();
    let status = loop {
        match running.next(Some(deadline)) {
            Ok(Event::Stdout(bytes)) => output.add(Stream::Stdout, &bytes),
            Ok(Event::Stderr(bytes)) => output.add(Stream::Stderr, &bytes),
            Ok(Event::Exit(_)) if is_killed => break Status::Timeout(limit),
            Ok(Event::Exit(status)) => break Status::Exit(status),
            // The guest did not kill the process either, so the guest hangs.
            Err(NoEvent::Timeout) if is_killed => break Status::Timeout(limit),
            Err(NoEvent::Timeout) => {
                running.control().kill().context("ending the test")?;
                is_killed = true;
                deadline = Instant::now() + KILL_TIMEOUT;
            }
            Err(NoEvent::KernelEnded) => {
                let output = output.text();
                let error = machine.failure(match machine.has_hung() {
                    true => "gave no sign of life and was killed",
                    false => "died",
                });
                return Err(error.context(format!(
                    "the kernel ended while the test ran; output of the test:\n{output}"
                )));
            }
        }
    };
    Ok(End {
        status,
        output: output.text(),
    })
}

/// Returns the command that runs only the test `name`.
fn command(program: PathBuf, name: &str) -> Vec<OsString> {
    let arguments = [
        name,
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--color=never",
    ];
    let mut command = vec![program.into_os_string()];
    command.extend(arguments.map(Into::into));
    command
}

/// Returns the time limit of a test: `LAB_TIMEOUT`, or a default scaled by the cost of a system call.
fn time_limit(machine: &Machine) -> Duration {
    let seconds = env::var("LAB_TIMEOUT").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let default = || cost::scaled(TIME_LIMIT, machine.syscall_cost());
    seconds.map_or_else(default, Duration::from_secs)
}

const TIME_LIMIT: Duration = Duration::from_secs(300);
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_turn_waits_only_for_tests_on_the_same_kernel() {
        let (one, other) = (Path::new("/one"), Path::new("/other"));
        let first = Turn::take(one, 2);
        let second = Turn::take(one, 2);
        drop(Turn::take(other, 1));
        thread::scope(|scope| {
            let third = scope.spawn(|| {
                let _turn = Turn::take(one, 2);
                running()[one]
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!third.is_finished());
            drop(first);
            assert_eq!(third.join().unwrap(), 2);
        });
        drop(second);
        assert_eq!(running()[one], 0);
    }
}
