//! Runs `bench compare`: its output, its files, and interruptions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
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

/// Returns the lines of a CSV file as maps from column names to values.
fn csv(folder: &Path, name: &str) -> Vec<HashMap<String, String>> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields.len(), header.len(), "{name}: {line}");
            let pairs = header.iter().zip(fields);
            pairs
                .map(|(key, value)| ((*key).to_owned(), value.to_owned()))
                .collect()
        })
        .collect()
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
fn every_file_has_every_scheduler_in_every_scenario() {
    let folder = TempDir::new().unwrap();
    let output = run("--connections 400 --repeats 1", folder.path());
    let table = String::from_utf8(output.stdout).unwrap();
    let report = json(folder.path());
    let scenarios = report["scenarios"].as_array().unwrap();
    let rows = csv(folder.path(), "results.csv");
    assert!(scenarios.len() >= 10);
    let mut expected = 0;
    for scenario in scenarios {
        let name = scenario["name"].as_str().unwrap();
        assert!(table.contains(&format!("{name}: ")), "{name}");
        for row in scenario["rows"].as_array().unwrap() {
            let scheduler = &row["scheduler"];
            let line = rows
                .iter()
                .find(|line| line["scenario"] == name && *scheduler == line["scheduler"])
                .unwrap();
            assert_eq!(line["arrived"], row["arrived"].to_string());
            let latency = &row["latencyMs"];
            let percentiles = ["p50", "p90", "p99", "p999"].map(|p| latency[p].as_f64().unwrap());
            assert!(percentiles.is_sorted(), "{name} {scheduler}");
            assert_eq!(row["spreadCurve"].as_array().unwrap().len(), 100);
            expected += 1;
        }
    }
    assert_eq!(rows.len(), expected);
    assert_eq!(csv(folder.path(), "curves.csv").len(), 100 * expected);

    // The kernel's schedulers and the registered one.
    let schedulers: HashSet<&str> = rows.iter().map(|row| row["scheduler"].as_str()).collect();
    for name in ["rr", "wrr", "lc", "wlc", "sh", "mh", "peak-ewma"] {
        assert!(schedulers.contains(name), "{name}");
    }
    let sweep = csv(folder.path(), "sweep.csv");
    let questions: HashSet<&str> = sweep.iter().map(|line| line["question"].as_str()).collect();
    assert_eq!(questions, HashSet::from(["equal", "weighted", "slow"]));
    assert!(table.contains("sweep, equal servers"));
}

#[test]
fn the_page_refers_to_nothing_outside() {
    let folder = TempDir::new().unwrap();
    run(
        "--connections 400 --repeats 2 --scenarios leaving,steady,sweep",
        folder.path(),
    );
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert_well_formed(&page);
    for outside in [
        "http:", "https:", "src=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    for name in ["lc", "peak-ewma", "id=\"leaving\"", "id=\"alone\"", "<svg"] {
        assert!(page.contains(name), "{name}");
    }
    for nonsense in ["NaN", "inf"] {
        let numbers = page.split(['"', '>', '<', ' ']);
        assert!(!numbers.clone().any(|text| text == nonsense), "{nonsense}");
    }
}

#[test]
fn the_same_seed_gives_the_same_files_on_any_number_of_threads() {
    let figures = |arguments: &str| {
        let folder = TempDir::new().unwrap();
        let common =
            "--connections 2000 --repeats 2 --scenarios bursty,slow --schedulers lc,mh,twos";
        run(&format!("{common} {arguments}"), folder.path());
        ["results.csv", "curves.csv"]
            .map(|name| fs::read_to_string(folder.path().join(name)).unwrap())
    };
    assert_eq!(
        figures("--seed 7 --threads 1"),
        figures("--seed 7 --threads 3")
    );
    assert_ne!(figures("--seed 7"), figures("--seed 8"));
}

#[test]
fn each_format_prints_its_kind_of_text() {
    let folder = TempDir::new().unwrap();
    let few = "--connections 500 --repeats 1 --scenarios steady --schedulers rr,lc";
    let printed = |format: &str| {
        let output = run(&format!("{few} --format {format}"), folder.path());
        String::from_utf8(output.stdout).unwrap()
    };
    let csv = printed("csv");
    assert_eq!(csv.lines().count(), 3);
    assert_eq!(
        csv,
        fs::read_to_string(folder.path().join("results.csv")).unwrap()
    );
    let json: Value = serde_json::from_str(&printed("json")).unwrap();
    assert_eq!(json["cells"], 2);
    assert_eq!(json["cellsDone"], 2);
    assert!(printed("table").contains("per millisecond"));
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

/// Starts a run that would take hours, waits until it simulates, and sends SIGINT.
fn interrupted(folder: &Path) -> (Output, Duration) {
    let mut child = compare()
        .args(["--scenarios", "quiet,steady", "--schedulers", "rr,lc"])
        .args([
            "--connections",
            "3000",
            "--repeats",
            "1000000",
            "--threads",
            "1",
        ])
        .arg("--out")
        .arg(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_child(&child);
    // The program creates the directory after it has installed the signal handlers.
    assert!(lab::await_true(Duration::from_millis(10), || folder.exists()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    kill_process(pid, Signal::INT).unwrap();
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    (output, start.elapsed())
}

#[test]
fn an_interrupted_run_writes_complete_cells_only() {
    let temporary = TempDir::new().unwrap();
    let folder = temporary.path().join("out");
    let (output, took) = interrupted(&folder);
    assert_eq!(output.status.code(), Some(130));
    // All cells would take hours.
    assert!(took < Duration::from_secs(600), "{took:?}");
    let report = json(&folder);
    assert_eq!(report["cells"], 4);
    assert_eq!(report["cellsDone"], 0);
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert_well_formed(&page);
    assert!(page.contains("Interrupted"));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("0 of 4 cells"), "{error}");
}

#[test]
fn finished_cells_survive_an_interruption() {
    let temporary = TempDir::new().unwrap();
    let folder = temporary.path().join("out");
    let mut child = compare()
        .args([
            "--connections",
            "20000",
            "--repeats",
            "20",
            "--threads",
            "1",
        ])
        .arg("--out")
        .arg(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first progress message is printed after the first cell.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("1 of "), "{first}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let report = json(&folder);
    let done = report["cellsDone"].as_u64().unwrap();
    assert!(
        done >= 1 && done < report["cells"].as_u64().unwrap(),
        "{rest:?}"
    );
    assert_eq!(csv(&folder, "results.csv").len() as u64, done);
}
