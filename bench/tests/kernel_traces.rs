//! `bench replay` makes the picks of the kernels' recorded traces, converted to JSON lines.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

#[path = "../../schedulers/tests/parity/trace.rs"]
mod trace;

use trace::{Connections, Event, Name, Scenario, Trace};

/// The kernel's default expiration of lblc and lblcr; JSON lines have no field for another.
const DAY_SECS: u32 = 86_400;

/// Returns a scenario as JSON lines, and the output that the kernel's picks require.
fn to_lines(trace: &Trace, scenario: &Scenario) -> (String, String) {
    let mut lines = format!(
        r#"{{"scheduler":"{}","flags":[{}],"flavour":"{}","family":{}}}"#,
        trace.scheduler,
        match (scenario.flags.port, scenario.flags.fallback) {
            (false, false) => "",
            (true, false) => r#""port""#,
            (false, true) => r#""fallback""#,
            (true, true) => r#""port","fallback""#,
        },
        trace.flavour,
        scenario.family
    );
    lines.push('\n');
    let mut answers = String::new();
    // A server that is added again still has its connections in the kernel; `add` starts with none.
    let mut connections: HashMap<Name, Connections> = HashMap::new();
    let mut listed: HashMap<Name, bool> = HashMap::new();
    for event in &scenario.events {
        match event {
            Event::Add(name, address, weight, _) => {
                let (address, port) = (address.ip(), address.port());
                writeln!(
                    lines,
                    r#"{{"add":"{name}","address":"{address}","port":{port},"weight":{weight}}}"#
                )
                .unwrap();
                listed.insert(*name, true);
                let now = connections.get(name).copied().unwrap_or_default();
                if now != Connections::default() {
                    lines.push_str(&connections_line(*name, now));
                }
            }
            Event::Remove(name) => {
                writeln!(lines, r#"{{"remove":"{name}"}}"#).unwrap();
                listed.insert(*name, false);
            }
            Event::Write(name, weight, _) => {
                writeln!(lines, r#"{{"weight":"{name}","to":{weight}}}"#).unwrap();
            }
            Event::Connections(name, now) => {
                connections.insert(*name, *now);
                if listed[name] {
                    lines.push_str(&connections_line(*name, *now));
                }
            }
            Event::Overload(name, on) => {
                writeln!(lines, r#"{{"overload":"{name}","on":{on}}}"#).unwrap();
            }
            Event::Pick(pick, answer) => {
                writeln!(
                    lines,
                    r#"{{"pick":{{"source":"{}","sourcePort":{},"destination":"{}","destinationPort":{},"at":{}.{:03}}}}}"#,
                    pick.source.ip(),
                    pick.source.port(),
                    pick.destination.ip(),
                    pick.destination.port(),
                    pick.at_ms / 1000,
                    pick.at_ms % 1000
                )
                .unwrap();
                match answer {
                    Some(name) => writeln!(answers, "{name}").unwrap(),
                    None => answers.push_str("-\n"),
                }
            }
        }
    }
    (lines, answers)
}

fn connections_line(name: Name, now: Connections) -> String {
    let Connections { active, inactive } = now;
    format!("{{\"connections\":\"{name}\",\"active\":{active},\"inactive\":{inactive}}}\n")
}

/// Returns the output of `bench replay`.
fn replay(lines: String) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bench"))
        .arg("replay")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn traces() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schedulers/tests/traces");
    let kernels = root.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let files = kernels
        .filter(|path| path.is_dir())
        .flat_map(|path| path.read_dir().unwrap());
    files.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn every_printed_pick_is_the_kernels() {
    let mut compared = 0;
    for path in traces() {
        let trace: Trace = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        for (number, scenario) in trace.scenarios.iter().enumerate() {
            // The picks of twos are random and cannot be compared one by one.
            if trace.scheduler == "twos" || scenario.expiration_secs != DAY_SECS {
                continue;
            }
            // One scenario in three is enough here: `schedulers/tests/parity.rs` replays all of them.
            if number % 3 != 0 {
                continue;
            }
            let (lines, answers) = to_lines(&trace, scenario);
            let ours = replay(lines);
            let different = ours.lines().zip(answers.lines()).position(|(a, b)| a != b);
            let path = path.display();
            assert_eq!(
                different, None,
                "{path}, scenario {number}: index of the pick"
            );
            assert_eq!(ours, answers, "{path}, scenario {number}");
            compared += scenario.picks();
        }
    }
    assert!(compared >= 40_000, "{compared} picks");
}
