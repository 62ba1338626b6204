//! `bench engine` as a program, at small sizes: it fails where a target is missed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

/// Whether `program` is installed; says so when it is not.
fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null());
    let is_there = command.status().is_ok_and(|status| status.success());
    if !is_there {
        skip(&format!("{program} is not installed"));
    }
    is_there
}

/// Says so aloud; where nothing may be skipped, as in CI, that is a failure.
#[track_caller]
fn skip(why: &str) {
    let is_allowed = std::env::var_os("LAB_REQUIRED").is_none() && std::env::var_os("CI").is_none();
    assert!(is_allowed, "{why}, and nothing may be skipped");
    eprintln!("SKIP: {why}");
}

#[track_caller]
fn holds(arguments: &[&str], expected: &[&str]) {
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
    if has("valgrind") {
        let arguments = ["--parts", "cpu", "--services", "60,600", "--changes", "5"];
        holds(&arguments, &["600  comes", "600  goes", "600  forgotten"]);
    }
}

#[test]
fn a_change_takes_few_system_calls() {
    if std::env::var_os("LAB_KERNEL").is_none() {
        return skip("LAB_KERNEL names no kernel");
    }
    if has("strace") {
        let arguments = ["--parts", "calls", "--services", "50"];
        let read_back = "of which 2 are requests other than for a whole table";
        holds(&arguments, &["2.0    2.0  of 10 times", read_back]);
    }
}
