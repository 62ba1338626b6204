//! The crate picks what kernels picked when `tests/traces` were recorded (`examples/record.rs`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

#[path = "parity/mod.rs"]
mod parity;
#[path = "parity/trace.rs"]
mod trace;

use parity::replay::{self, Way};
use parity::report::Report;
use trace::{Flavour, Scenario, Trace};

/// What is asked of every scheduler on every kernel.
const SCENARIOS: usize = 30;
const PICKS: usize = 5_000;

/// All traces: path, text and meaning.
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
fn every_pick_is_the_kernels() {
    let mut report = Report::default();
    for (path, _, trace) in traces() {
        report.hold(&trace, path.display());
    }
    // Past libtest, which would keep it to itself.
    write!(std::io::stderr().lock(), "{report}").unwrap();
    assert!(
        report.failures().is_empty(),
        "{}",
        report.failures().join("\n")
    );
}

#[test]
fn the_traces_are_what_was_asked_for() {
    let traces = traces();
    let known = schedulers::Registry::kernel();
    for name in known.names() {
        let count = traces
            .iter()
            .filter(|(_, _, trace)| trace.scheduler == name);
        assert!(count.count() >= 2, "{name}: a trace of each kernel");
    }
    let mut sums = BTreeMap::new();
    for (path, text, trace) in &traces {
        let sums = sums
            .entry((&trace.kernel, &trace.scheduler))
            .or_insert((0, 0));
        sums.0 += trace.scenarios.len();
        sums.1 += trace.scenarios.iter().map(Scenario::picks).sum::<usize>();
        let path = path.display();
        assert_eq!(*text, trace.to_string(), "{path} reads as it was written");
    }
    for (trace, (scenarios, picks)) in sums {
        assert!(scenarios >= SCENARIOS, "{trace:?}: {scenarios} scenarios");
        assert!(picks >= PICKS, "{trace:?}: {picks} picks");
    }
}

/// A trace proves a rule only where breaking it shows.
#[test]
fn other_rules_would_show() {
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
    let [told, own] = [Way::ALL[0], Way::ALL[1]];
    let twists = [
        // Who is told does not apply thresholds: what is left is the cost.
        ("lc", told, flavour),
        ("wlc", told, flavour),
        ("lblc", told, flavour),
        ("lblcr", told, flavour),
        // No cost, but thresholds.
        ("rr", own, flavour),
        ("lblcr", told, expiration),
        ("lblc-aged", told, expiration),
        ("sh", told, port),
        ("sh", told, fallback),
        ("mh", told, port),
        ("mh", told, fallback),
    ];
    for (path, _, trace) in traces() {
        for (name, way, twist) in twists {
            if path.file_stem().unwrap() != name {
                continue;
            }
            let mut twisted = trace.clone();
            twist(&mut twisted);
            let differs = |scenario| replay::compare(&twisted, scenario, way).is_err();
            let differing = twisted.scenarios.iter().filter(|it| differs(it)).count();
            assert!(differing > 0, "{}, {way:?}", path.display());
        }
    }
}
