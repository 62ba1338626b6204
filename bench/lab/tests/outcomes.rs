//! The result of a test in the guest becomes the result of the test on the host.

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
    process::{self, Command, Output},
    thread::sleep,
    time::{Duration, Instant},
};

use lab::{
    kernel,
    net::{ask_tcp_within, ask_udp_within},
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

mod kernels;

use kernels::{is_lab_kernel, lab_kernels, parent_of};

#[test]
fn a_panic_in_the_guest_fails_the_test_with_its_message() {
    let Some(failed) = run("fixture_panics", &[]) else {
        return;
    };
    assert!(!failed.status.success());
    let words = words(&failed);
    assert!(words.contains("seven is not eight"), "{words}");
    assert!(words.contains("fixture_panics on Linux "), "{words}");
    assert!(words.contains("tests/outcomes.rs"), "{words}");
}

#[test]
fn a_crash_in_the_guest_fails_the_test_with_its_signal() {
    let Some(failed) = run("fixture_aborts", &[]) else {
        return;
    };
    assert!(!failed.status.success());
    let words = words(&failed);
    assert!(words.contains("crashed (signal 6)"), "{words}");
    assert!(words.contains("last words"), "{words}");
}

#[test]
fn a_test_that_exits_with_0_fails() {
    let Some(failed) = run("fixture_exits", &[]) else {
        return;
    };
    assert!(!failed.status.success());
    let words = words(&failed);
    assert!(words.contains("ended without a result"), "{words}");
}

#[test]
fn a_test_that_hangs_is_killed() {
    let Some(failed) = run("fixture_sleeps", &[("LAB_TIMEOUT", "1")]) else {
        return;
    };
    assert!(!failed.status.success());
    let words = words(&failed);
    assert!(words.contains("was killed after 1 s"), "{words}");
}

#[test]
fn a_test_whose_kernel_hangs_runs_again_on_a_new_machine() {
    let Some(kernels) = lab_kernels() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("runs");
    // Longer than a machine stands still on a busy host.
    let env = [("LAB_SILENCE", "40"), (MARK, mark.to_str().unwrap())];
    let passed = run_on(&kernels[..1], "fixture_is_stopped_once", &env);
    let words = words(&passed);
    assert!(passed.status.success(), "{words}");
    assert!(words.contains("gave no sign of life"), "{words}");
    assert!(
        words.contains("fixture_is_stopped_once runs again on a new machine"),
        "{words}"
    );
}

#[test]
fn clients_get_their_answers_from_a_machine_that_stood_still() {
    for kernel in lab_kernels().unwrap_or_default() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("runs");
        let env = [(MARK, mark.to_str().unwrap())];
        let passed = run_on(&[kernel], "fixture_stands_still", &env);
        assert!(passed.status.success(), "{}", words(&passed));
    }
}

#[test]
fn the_output_of_a_passing_test_is_printed() {
    let Some(passed) = run("fixture_speaks", &[("RUST_TEST_THREADS", "1")]) else {
        return;
    };
    let words = words(&passed);
    assert!(passed.status.success(), "{words}");
    assert!(words.contains("something to say"), "{words}");
}

#[test]
fn a_skip_is_printed_and_fails_if_the_lab_is_required() {
    let nowhere = [
        ("LAB_KERNEL", ""),
        ("XDG_CACHE_HOME", "/nonexistent"),
        ("CI", ""),
        ("LAB_REQUIRED", ""),
    ];
    let skipped = Command::new(env::current_exe().unwrap())
        .args(["fixture_speaks", "--exact", "--ignored"])
        .envs(nowhere)
        .output()
        .unwrap();
    let said = words(&skipped);
    if !said.contains("SKIP") {
        // This machine's own kernel has IPVS.
        assert!(skipped.status.success(), "{said}");
        return;
    }
    assert!(skipped.status.success(), "{said}");
    assert!(said.contains("SKIP fixture_speaks: no kernel"), "{said}");

    let required = Command::new(env::current_exe().unwrap())
        .args(["fixture_speaks", "--exact", "--ignored"])
        .envs(nowhere)
        .env("LAB_REQUIRED", "1")
        .output()
        .unwrap();
    assert!(!required.status.success(), "{}", words(&required));
}

#[test]
fn a_missing_kernel_is_an_error() {
    let failed = Command::new(env::current_exe().unwrap())
        .args(["fixture_speaks", "--exact", "--ignored"])
        .env("LAB_KERNEL", "/nonexistent/linux")
        .output()
        .unwrap();
    let said = words(&failed);
    if is_lab_kernel() {
        return;
    }
    assert!(!failed.status.success(), "{said}");
    assert!(said.contains("/nonexistent/linux"), "{said}");
}

#[test]
fn a_kernel_that_dies_is_reported() {
    // `false` ends at once, like a kernel that cannot boot on this host.
    let failed = Command::new(env::current_exe().unwrap())
        .args(["fixture_speaks", "--exact", "--ignored"])
        .env("LAB_KERNEL", "/bin/false")
        .output()
        .unwrap();
    if is_lab_kernel() {
        return;
    }
    let said = words(&failed);
    assert!(!failed.status.success(), "{said}");
    assert!(said.contains("died while booting"), "{said}");
}

/// Returns the kernels that this process started.
fn kernels() -> Vec<Pid> {
    let own = process::id().cast_signed();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children = processes.filter(|process| parent_of(*process) == Some(own));
    children.filter_map(Pid::from_raw).collect()
}

/// The variable with the path of a file that a fixture makes when it runs in the guest.
const MARK: &str = "FIXTURE_RUNS";

/// Makes the file of [`MARK`]. Returns whether this is the fixture's first run.
fn leave_mark() -> bool {
    let path = env::var_os(MARK).expect("the test sets it");
    File::create_new(path).is_ok()
}

/// Waits until a fixture runs in the guest.
fn await_mark() {
    let path = env::var_os(MARK).expect("the test sets it");
    while !Path::new(&path).exists() {
        sleep(Duration::from_millis(50));
    }
}

/// Stops the kernel that this process has started.
fn stop_the_kernel() {
    await_mark();
    kill_process_group(kernels()[0], Signal::STOP).expect("the kernel is ours");
}

/// Stops the kernel of this process again and again for [`STANDSTILL`], as a busy host does.
fn stop_the_kernel_for_a_while() {
    await_mark();
    loop {
        sleep(Duration::from_secs(1));
        let kernels = kernels();
        let signal = |signal| {
            for &kernel in &kernels {
                // A kernel may have ended. The processes of a guest are in its group: on Linux 6.1 they would
                // take the signal for one of their own.
                let _gone = kill_process(kernel, signal);
            }
        };
        signal(Signal::STOP);
        sleep(STANDSTILL);
        signal(Signal::CONT);
    }
}

/// More than ten times [`LIMIT`], which [`lab::patience`] may become.
const STANDSTILL: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_millis(200);

#[test]
#[ignore = "fixture"]
fn fixture_stands_still() {
    if !is_lab_kernel() {
        std::thread::spawn(stop_the_kernel_for_a_while);
    }
    lab::test(|| {
        let mut node = lab::net::node("node-a");
        let ext = node.link("ext0", "203.0.113.1/24", "ext", "203.0.113.9/24");
        ext.serve_tcp(8080);
        ext.serve_udp(5353);
        leave_mark();
        let mut standstills = 0;
        while standstills < 3 {
            let asked = Instant::now();
            let tcp = ask_tcp_within("203.0.113.9:8080".parse().unwrap(), LIMIT);
            let udp = ask_udp_within("203.0.113.9:5353".parse().unwrap(), LIMIT);
            let took = asked.elapsed();
            standstills += u32::from(took > STANDSTILL / 2);
            for answer in [tcp, udp] {
                assert_eq!(answer.backend(), Some("ext"), "{answer} after {took:?}");
            }
        }
    });
}

#[test]
#[ignore = "fixture"]
fn fixture_is_stopped_once() {
    if !is_lab_kernel() {
        std::thread::spawn(stop_the_kernel);
    }
    lab::test(|| {
        if leave_mark() {
            sleep(Duration::from_secs(600));
        }
    });
}

#[test]
#[ignore = "fixture"]
fn fixture_panics() {
    lab::test(|| assert_eq!(7, 8, "seven is not eight"));
}

#[test]
#[ignore = "fixture"]
fn fixture_aborts() {
    lab::test(|| {
        eprintln!("last words");
        process::abort();
    });
}

#[test]
#[ignore = "fixture"]
fn fixture_exits() {
    lab::test(|| process::exit(0));
}

#[test]
#[ignore = "fixture"]
fn fixture_sleeps() {
    lab::test(|| sleep(Duration::from_secs(600)));
}

#[test]
#[ignore = "fixture"]
fn fixture_speaks() {
    lab::test(|| eprintln!("something to say"));
}

/// Runs a fixture in a new process on all lab kernels; `None` if there is none.
fn run(fixture: &str, env: &[(&str, &str)]) -> Option<Output> {
    Some(run_on(&lab_kernels()?, fixture, env))
}

/// Runs a fixture in a new process on these kernels.
fn run_on(kernels: &[PathBuf], fixture: &str, env: &[(&str, &str)]) -> Output {
    let program = env::current_exe().expect("a running program has a path");
    let output = Command::new(program)
        .args([fixture, "--exact", "--ignored", "--nocapture"])
        .env(
            kernel::VARIABLE,
            env::join_paths(kernels).expect("the paths came from a list with the same separator"),
        )
        .envs(env.iter().copied())
        .output();
    output.expect("the test binary runs")
}

fn words(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}
