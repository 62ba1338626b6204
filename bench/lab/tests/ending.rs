//! A machine ends with its test, no matter how the test ends.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashMap,
    env, fs,
    io::{Write, stderr},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::kernel;
use rustix::process::{Pid, Signal, kill_process};

mod kernels;

use kernels::{lab_kernels, parent_of};

/// The time for which the guest computes before its only output.
const SILENCE: Duration = Duration::from_secs(1);

#[test]
fn an_interrupted_test_leaves_no_process() {
    // Not SIGINT: background jobs of a shell, and thus all their children, ignore it.
    on_each_kernel(|machine| machine.end(&[Victim::Test], Signal::TERM));
}

#[test]
fn a_killed_test_leaves_no_process() {
    on_each_kernel(|machine| machine.end(&[Victim::Test], Signal::KILL));
}

#[test]
fn a_killed_kernel_leaves_no_helper() {
    on_each_kernel(|machine| machine.end(&[Victim::Kernel], Signal::KILL));
}

/// If test and kernel are killed, the warden kills the helpers.
#[test]
fn helpers_do_not_outlive_test_and_kernel() {
    on_each_kernel(|machine| machine.end(&[Victim::Kernel, Victim::Test], Signal::KILL));
}

/// If test and warden are killed, the guest switches itself off, even while it computes.
#[test]
fn a_busy_guest_does_not_outlive_test_and_warden() {
    on_each_kernel(|machine| machine.end(&[Victim::Warden, Victim::Test], Signal::KILL));
}

/// The line of a test that is killed before it has read all output ends with a reset.
#[test]
fn a_guest_with_unread_output_does_not_outlive_test_and_warden() {
    on_each_kernel(|machine| {
        machine.stop_reading();
        machine.end(&[Victim::Warden, Victim::Test], Signal::KILL);
    });
}

#[test]
#[ignore = "fixture"]
fn fixture_computes_for_ever() {
    lab::test(|| {
        fs::write(env::var_os("FIXTURE_IS_BUSY").unwrap(), "").unwrap();
        rustix::fs::sync();
        let began = Instant::now();
        while began.elapsed() < SILENCE {
            std::hint::spin_loop();
        }
        // libtest does not capture what is written to the handle.
        writeln!(stderr(), "busy").unwrap();
        loop {
            std::hint::spin_loop();
        }
    });
}

/// Which process of a test and its machine is killed.
#[derive(Clone, Copy)]
enum Victim {
    Test,
    Kernel,
    Warden,
}

/// A machine that computes for ever.
struct Busy<'a> {
    test: Child,
    kernel: &'a Path,
    /// The working directory of the machine's processes.
    directory: &'a Path,
}

fn on_each_kernel(body: impl Fn(Busy<'_>)) {
    for kernel in &lab_kernels().unwrap_or_default() {
        let scratch = tempfile::tempdir().unwrap();
        let is_busy = scratch.path().join("is-busy");
        let directory = scratch.path().join("machine");
        fs::create_dir(&directory).unwrap();
        let test = Command::new(env::current_exe().unwrap())
            .args(["fixture_computes_for_ever", "--exact", "--ignored"])
            .env(kernel::VARIABLE, kernel)
            .env("LAB_DIRECTORY", &directory)
            .env("FIXTURE_IS_BUSY", &is_busy)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the guest computes", || is_busy.exists());
        body(Busy {
            test,
            kernel,
            directory: &directory,
        });
    }
}

impl Busy<'_> {
    /// Stops the test, and waits until the guest has sent output that the test does not read.
    fn stop_reading(&self) {
        let test = Pid::from_child(&self.test);
        kill_process(test, Signal::STOP).unwrap();
        sleep(3 * SILENCE);
    }

    /// Sends `signal` to `victims`, and waits until all processes of the machine have ended.
    fn end(mut self, victims: &[Victim], signal: Signal) {
        let processes = processes(self.directory);
        // At least kernel, warden and one process that runs the guest's programs.
        assert!(processes.len() >= 3, "{processes:?}");
        let test = self.test.id().cast_signed();
        let child_of = |parent: i32, program: &Path| {
            let is_it = |(_, name): &(&i32, &String)| name.as_str() == program.to_str().unwrap();
            let mut pids = processes.iter().filter(is_it).map(|(pid, _)| *pid);
            pids.find(|pid| parent_of(*pid) == Some(parent)).unwrap()
        };
        // A helper of 6.1 is a copy of the kernel, and the kernel's child, as the warden is.
        let kernel = child_of(test, self.kernel);
        let warden = child_of(kernel, &env::current_exe().unwrap());
        for victim in victims {
            let pid = match victim {
                Victim::Test => test,
                Victim::Kernel => kernel,
                Victim::Warden => warden,
            };
            kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        }
        self.test.wait().unwrap();
        wait_until("the machine ends", || {
            crate::processes(self.directory).is_empty()
        });
    }
}

/// Returns the processes with this working directory, as numbers and programs, without zombies.
fn processes(directory: &Path) -> HashMap<i32, String> {
    let mut found = HashMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let (Ok(pid), path) = (name.parse(), entry.path()) else {
            continue;
        };
        // Both links of a zombie are unreadable.
        if fs::read_link(path.join("cwd")).is_ok_and(|it| it == directory)
            && let Ok(program) = fs::read_link(path.join("exe"))
        {
            found.insert(pid, program.to_string_lossy().into_owned());
        }
    }
    found
}

#[track_caller]
fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    let comes_true = lab::await_true(Duration::from_millis(20), is_so);
    assert!(comes_true, "never: {what}");
}
