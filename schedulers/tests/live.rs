//! The running kernel and the crate get the same random scenarios, and pick alike.

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

use kernel::dice::Dice;
use kernel::plan::{Extent, Plan};
use parity::report::Report;
use trace::{Scenario, Trace};

/// How long each kernel is asked.
const TIME: Duration = Duration::from_secs(40);

/// So many scenarios are played however slow the machine is, or one would count for too much.
const FEWEST: usize = 50;

/// Rather many short scenarios.
const EXTENT: Extent = Extent {
    picks: 80,
    expiries: 0,
    pauses: 1,
    naps: &[],
};

/// Set to the seed of a run, this repeats it, as far as it does not depend on time.
const SEED: &str = "LIVE_SEED";

/// Where each kernel's report goes, and a trace that differs.
const RESULTS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/live");

#[test]
fn random_scenarios_go_alike() {
    let begun = wall_clock();
    lab::test(|| {
        let report = play_and_compare();
        std::fs::create_dir_all(RESULTS).unwrap();
        let path = Path::new(RESULTS).join(lab::kernel_release());
        std::fs::write(path.with_extension("txt"), &report).unwrap();
    });
    // What was printed inside is kept by libtest, unless it fails.
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

/// In a kernel: asks it for [`TIME`], then the crate; answers the report.
fn play_and_compare() -> String {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => wall_clock().duration_since(UNIX_EPOCH).unwrap().as_secs(),
    };
    eprintln!("{SEED}={seed}");
    let flavour = lab::in_fresh_network(kernel::flavour::probe)
        .unwrap()
        .unwrap();
    let mut dice = Dice::new(seed, 0);
    let registry = schedulers::Registry::kernel();
    let schedulers: Vec<&str> = registry.names().collect();
    let mut traces: BTreeMap<&str, Trace> = BTreeMap::new();
    let (mut played, mut unclear) = (0, 0);
    let begun = kernel::now();
    while begun.elapsed() < TIME || played < FEWEST {
        let scheduler = *dice.choose(&schedulers);
        let number = dice.draw(0..=u32::MAX - 1);
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
        report.hold(trace, format!("{SEED}={seed}, {}", trace.scheduler));
        if report.failures().len() > before {
            let path = format!("{RESULTS}-{}-{}.trace", trace.kernel, trace.scheduler);
            std::fs::write(&path, trace.to_string()).unwrap();
            eprintln!("all of it is in {path}");
        }
    }
    let text = format!("{report}{played} scenarios, {unclear} of them unclear, {SEED}={seed}\n");
    eprint!("{text}");
    let failures = report.failures().join("\n");
    assert!(failures.is_empty(), "{failures}");
    let picks = traces.values().flat_map(|trace| &trace.scenarios);
    assert!(picks.map(Scenario::picks).sum::<usize>() > 0);
    assert!(unclear * 10 <= played, "picks are hard to tell");
    text
}

#[expect(
    clippy::disallowed_methods,
    reason = "the crate has no clock, tests have"
)]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
