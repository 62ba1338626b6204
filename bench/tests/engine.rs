//! Runs `bench engine` at small sizes. It exits with 1 if a limit is exceeded.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

/// Returns whether `program` is installed; if not, skips the test.
fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null());
    let is_installed = command.status().is_ok_and(|status| status.success());
    if !is_installed {
        skip(&format!("{program} is not installed"));
    }
    is_installed
}

/// Prints `SKIP` and the reason; panics if `LAB_REQUIRED` or `CI` is set.
#[track_caller]
fn skip(reason: &str) {
    let is_allowed = std::env::var_os("LAB_REQUIRED").is_none() && std::env::var_os("CI").is_none();
    assert!(is_allowed, "{reason}, and LAB_REQUIRED or CI forbids skips");
    eprintln!("SKIP: {reason}");
}

/// Runs `bench engine`, which must succeed and print each text of `expected`.
#[track_caller]
fn assert_measures(arguments: &[&str], expected: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("engine")
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for words in expected {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
}

#[test]
fn a_change_costs_as_much_in_a_larger_cluster() {
    if is_installed("valgrind") {
        let arguments = ["--parts", "cpu", "--services", "60,600", "--changes", "5"];
        let expected = ["600  added", "600  drained", "600  deleted"];
        assert_measures(&arguments, &expected);
    }
}

#[test]
fn a_change_takes_few_system_calls() {
    if std::env::var_os("LAB_KERNEL").is_none() {
        return skip("LAB_KERNEL names no kernel");
    }
    if is_installed("strace") {
        let arguments = ["--parts", "calls", "--services", "50"];
        // Our table and its generation; the device kube-ipvs0, for the machine's addresses and for ours.
        let read_back = "of which 4 are requests other than for a whole table";
        assert_measures(&arguments, &["2.0    2.0  of 10 times", read_back]);
    }
}
