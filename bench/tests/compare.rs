//! Runs `bench compare`: its output and its files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn compare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.arg("compare").stdin(Stdio::null());
    command
}

/// Runs the program with these arguments, separated by spaces, and writes into `out`.
fn run(arguments: &str, out: &Path) -> Output {
    let output = compare()
        .args(arguments.split_whitespace())
        .arg("--out")
        .arg(out)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn json(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("results.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Asserts that every tag is closed, in the right order.
fn assert_well_formed(html: &str) {
    const EMPTY: [&str; 3] = ["meta", "br", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    for tag in html.split('<').skip(1) {
        let tag = tag.split_once('>').unwrap().0;
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') && !EMPTY.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn every_scheduler_is_in_every_scenario() {
    let folder = TempDir::new().unwrap();
    let output = run("--connections 400 --repeats 1", folder.path());
    let table = String::from_utf8(output.stdout).unwrap();
    let results = json(folder.path());
    let scenarios = results["scenarios"].as_array().unwrap();
    assert!(scenarios.len() >= 10);
    for scenario in scenarios {
        let name = scenario["name"].as_str().unwrap();
        assert!(table.contains(&format!("\n{name}\n")), "{name}");
        let rows = scenario["rows"].as_array().unwrap();
        for row in rows {
            let latency = &row["latencyMs"];
            let percentiles = ["p50", "p90", "p99", "p999"].map(|p| latency[p].as_f64().unwrap());
            assert!(percentiles.is_sorted(), "{name} {row}");
            assert_eq!(row["peakCurve"].as_array().unwrap().len(), 100);
        }
        // The kernel's schedulers and the registered one.
        let schedulers: HashSet<&str> = rows
            .iter()
            .map(|row| row["scheduler"].as_str().unwrap())
            .collect();
        for scheduler in ["rr", "wrr", "lc", "wlc", "sh", "mh", "peak-ewma", "slots"] {
            assert!(schedulers.contains(scheduler), "{scheduler}");
        }
    }
    let sweeps = results["sweeps"].as_array().unwrap().iter();
    let names: HashSet<&str> = sweeps.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        HashSet::from(["equal", "weighted", "slow", "slots", "weighted-slots"])
    );
    assert!(table.contains("lc or rr: equal servers"));
}

#[test]
fn the_page_refers_to_nothing_outside() {
    let folder = TempDir::new().unwrap();
    run(
        "--connections 400 --repeats 2 --scenarios leaving,steady,sweep",
        folder.path(),
    );
    let page = fs::read_to_string(folder.path().join("index.html")).unwrap();
    assert_well_formed(&page);
    for outside in [
        "http:", "https:", "src=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    for name in ["lc", "peak-ewma", "id=\"leaving\"", "wlc or wrr", "<svg"] {
        assert!(page.contains(name), "{name}");
    }
    for nonsense in ["NaN", "inf"] {
        let numbers = page.split(['"', '>', '<', ' ']);
        assert!(!numbers.clone().any(|text| text == nonsense), "{nonsense}");
    }
}

#[test]
fn the_same_seed_gives_the_same_results_on_any_number_of_threads() {
    let figures = |arguments: &str| {
        let folder = TempDir::new().unwrap();
        let common =
            "--connections 2000 --repeats 2 --scenarios bursty,slow --schedulers lc,mh,twos";
        run(&format!("{common} {arguments}"), folder.path());
        json(folder.path())["scenarios"].clone()
    };
    assert_eq!(
        figures("--seed 7 --threads 1"),
        figures("--seed 7 --threads 3")
    );
    assert_ne!(figures("--seed 7"), figures("--seed 8"));
}

#[test]
fn json_is_printed_as_it_is_written() {
    let folder = TempDir::new().unwrap();
    let few = "--connections 500 --repeats 1 --scenarios steady --schedulers rr,lc --json";
    let output = run(few, folder.path());
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed, json(folder.path()));
    assert_eq!(printed["scenarios"][0]["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn unknown_names_are_rejected_with_the_known_ones() {
    for (flag, known) in [("--schedulers", "peak-ewma"), ("--scenarios", "steady")] {
        let output = compare().args([flag, "no-such"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.contains("\"no-such\"") && error.contains(known),
            "{error}"
        );
    }
    let list = compare().arg("--list").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(
        list.contains("peak-ewma") && list.contains("many-nodes"),
        "{list}"
    );
}
