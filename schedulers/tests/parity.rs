//! The crate makes the picks of the kernels recorded in `tests/traces` (by `examples/record.rs`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

#[path = "parity/mod.rs"]
mod parity;
#[path = "parity/trace.rs"]
mod trace;

use parity::replay::{self, Mode};
use parity::report::Report;
use trace::{Flavour, Scenario, Trace};

/// The least number of scenarios and picks of every scheduler on every kernel.
const SCENARIOS: usize = 30;
const PICKS: usize = 5_000;

/// Returns the path, the text and the parsed content of all traces.
fn traces() -> Vec<(PathBuf, String, Trace)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut traces = Vec::new();
    for kernel in root.read_dir().unwrap() {
        let kernel = kernel.unwrap().path();
        if !kernel.is_dir() {
            continue;
        }
        for file in kernel.read_dir().unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let trace = text.parse();
            let trace = trace.unwrap_or_else(|error| panic!("{}: {error:#}", path.display()));
            traces.push((path, text, trace));
        }
    }
    traces
}

#[test]
fn every_pick_equals_the_kernels() {
    let mut report = Report::default();
    for (path, _, trace) in traces() {
        report.compare(&trace, path.display());
    }
    // Written to stderr directly: libtest captures what `println!` writes.
    write!(std::io::stderr().lock(), "{report}").unwrap();
    assert!(
        report.failures().is_empty(),
        "{}",
        report.failures().join("\n")
    );
}

#[test]
fn the_traces_are_complete() {
    let traces = traces();
    let known = schedulers::Registry::kernel();
    for name in known.names() {
        let count = traces
            .iter()
            .filter(|(_, _, trace)| trace.scheduler == name);
        assert!(count.count() >= 2, "{name} needs a trace of each kernel");
    }
    let mut sums = BTreeMap::new();
    for (path, text, trace) in &traces {
        let sums = sums
            .entry((&trace.kernel, &trace.scheduler))
            .or_insert((0, 0));
        sums.0 += trace.scenarios.len();
        sums.1 += trace.scenarios.iter().map(Scenario::picks).sum::<usize>();
        let path = path.display();
        assert_eq!(
            *text,
            trace.to_string(),
            "{path} changes when it is read and written"
        );
    }
    for (trace, (scenarios, picks)) in sums {
        assert!(scenarios >= SCENARIOS, "{trace:?}: {scenarios} scenarios");
        assert!(picks >= PICKS, "{trace:?}: {picks} picks");
    }
}

/// Traces prove a rule only if a replay with another rule fails.
#[test]
fn a_replay_with_wrong_rules_fails() {
    type Twist = fn(&mut Trace);
    let flavour: Twist = |trace| {
        trace.flavour = match trace.flavour {
            Flavour::Total => Flavour::Classic,
            Flavour::Classic => Flavour::Total,
        };
    };
    let expiration: Twist = |trace| {
        for scenario in &mut trace.scenarios {
            scenario.expiration_secs = 1_000_000;
        }
    };
    let port: Twist = |trace| {
        for scenario in &mut trace.scenarios {
            scenario.flags.port ^= true;
        }
    };
    let fallback: Twist = |trace| {
        for scenario in &mut trace.scenarios {
            scenario.flags.fallback ^= true;
        }
    };
    let [from_trace, by_crate] = [Mode::ALL[0], Mode::ALL[1]];
    let twists = [
        // Counts from the trace bypass the thresholds, so only the load formula can differ.
        ("lc", from_trace, flavour),
        ("wlc", from_trace, flavour),
        ("lblc", from_trace, flavour),
        ("lblcr", from_trace, flavour),
        // rr ignores the load, so only the thresholds can differ.
        ("rr", by_crate, flavour),
        ("lblcr", from_trace, expiration),
        ("lblc-aged", from_trace, expiration),
        ("sh", from_trace, port),
        ("sh", from_trace, fallback),
        ("mh", from_trace, port),
        ("mh", from_trace, fallback),
    ];
    for (path, _, trace) in traces() {
        for (name, mode, twist) in twists {
            if path.file_stem().unwrap() != name {
                continue;
            }
            let mut twisted = trace.clone();
            twist(&mut twisted);
            let differs = |scenario| replay::compare(&twisted, scenario, mode).is_err();
            let differing = twisted.scenarios.iter().filter(|it| differs(it)).count();
            assert!(differing > 0, "{}, {mode:?}", path.display());
        }
    }
}
