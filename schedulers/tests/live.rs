//! The running kernel and the crate make the same picks in the same random scenarios.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[path = "kernel/mod.rs"]
mod kernel;
#[path = "parity/mod.rs"]
mod parity;
#[path = "parity/trace.rs"]
mod trace;

use kernel::plan::{Extent, Plan};
use kernel::random::Random;
use parity::report::Report;
use trace::{Scenario, Trace};

/// How long scenarios are played on each kernel.
const TIME: Duration = Duration::from_secs(40);

/// At least this many scenarios are played, however slow the machine: with few, a single unclear
/// scenario would exceed the permitted share.
const FEWEST: usize = 50;

/// Many short scenarios.
const EXTENT: Extent = Extent {
    picks: 80,
    expiries: 0,
    pauses: 1,
    idle_secs: &[],
};

/// If this variable has the seed of an earlier run, the test repeats that run as far as it does not
/// depend on time.
const SEED: &str = "LIVE_SEED";

/// The directory for the report of each kernel, and for the traces that differ.
const RESULTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/live");

#[test]
fn the_kernel_and_the_crate_make_the_same_picks() {
    let begun = wall_clock();
    lab::test(|| {
        let report = play_and_compare();
        std::fs::create_dir_all(RESULTS).unwrap();
        let path = Path::new(RESULTS).join(lab::kernel_release());
        std::fs::write(path.with_extension("txt"), &report).unwrap();
    });
    // libtest shows what a test printed inside the lab only if it fails.
    let Ok(results) = Path::new(RESULTS).read_dir() else {
        return;
    };
    for result in results {
        let path = result.unwrap().path();
        let is_new = path.metadata().unwrap().modified().unwrap() >= begun;
        if is_new && path.extension().is_some_and(|it| it == "txt") {
            let report = std::fs::read(path).unwrap();
            std::io::stderr().lock().write_all(&report).unwrap();
        }
    }
}

/// Runs in a kernel: plays scenarios for [`TIME`], compares them with the crate, returns the report.
fn play_and_compare() -> String {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => wall_clock().duration_since(UNIX_EPOCH).unwrap().as_secs(),
    };
    eprintln!("{SEED}={seed}");
    let flavour = lab::in_fresh_network(kernel::flavour::probe)
        .unwrap()
        .unwrap();
    let mut random = Random::new(seed, 0);
    let registry = schedulers::Registry::kernel();
    let schedulers: Vec<&str> = registry.names().collect();
    let mut traces: BTreeMap<&str, Trace> = BTreeMap::new();
    let (mut played, mut unclear) = (0, 0);
    let begun = kernel::now();
    while begun.elapsed() < TIME || played < FEWEST {
        let scheduler = *random.choose(&schedulers);
        let number = random.draw(0..=u32::MAX - 1);
        let plan = Plan::draw(scheduler, number, EXTENT, seed);
        let trace = traces.entry(scheduler).or_insert_with(|| Trace {
            scheduler: scheduler.into(),
            kernel: lab::kernel_release(),
            flavour,
            scenarios: Vec::new(),
        });
        played += 1;
        match lab::in_fresh_network(|| plan.play(flavour)).unwrap() {
            Ok(scenario) => trace.scenarios.push(scenario),
            Err(error) => {
                eprintln!("{scheduler}, scenario {number}: {error:#}");
                unclear += 1;
            }
        }
    }
    eprintln!("{:.0} s in the kernel", begun.elapsed().as_secs_f32());
    let mut report = Report::default();
    for trace in traces.values() {
        let before = report.failures().len();
        report.compare(trace, format!("{SEED}={seed}, {}", trace.scheduler));
        if report.failures().len() > before {
            let path = format!("{RESULTS}-{}-{}.trace", trace.kernel, trace.scheduler);
            std::fs::write(&path, trace.to_string()).unwrap();
            eprintln!("the whole trace is in {path}");
        }
    }
    let text = format!("{report}{played} scenarios, {unclear} of them unclear, {SEED}={seed}\n");
    eprint!("{text}");
    let failures = report.failures().join("\n");
    assert!(failures.is_empty(), "{failures}");
    let picks = traces.values().flat_map(|trace| &trace.scenarios);
    assert!(picks.map(Scenario::picks).sum::<usize>() > 0);
    assert!(
        unclear * 10 <= played,
        "{unclear} of {played} scenarios have picks that cannot be attributed"
    );
    text
}

#[expect(
    clippy::disallowed_methods,
    reason = "the crate has no clock, its tests have one"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
