//! What was compared: a line per kernel and scheduler.

use std::collections::BTreeMap;
use std::fmt;

use crate::parity::lots;
use crate::parity::replay::{self, Way};
use crate::trace::Trace;

/// Counts by kernel and scheduler, and what differed.
#[derive(Debug, Default)]
pub(crate) struct Report {
    counts: BTreeMap<(String, String), Counts>,
    failures: Vec<String>,
}

/// What was compared of one scheduler.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    scenarios: usize,
    picks: usize,
    ways: usize,
    differing: usize,
}

impl Report {
    /// Holds `trace`, which is called `title`, against the crate. A scenario ends at its first
    /// difference.
    pub(crate) fn hold(&mut self, trace: &Trace, way: Way, title: impl fmt::Display) {
        let key = (trace.kernel.clone(), trace.scheduler.clone());
        let mut counts = Counts::default();
        if trace.scheduler == "twos" {
            match lots::compare(trace, way) {
                Ok(picks) => (counts.scenarios, counts.picks) = (trace.scenarios.len(), picks),
                Err(error) => {
                    counts.differing += 1;
                    self.failures.push(format!("{title}, {way:?}: {error:#}"));
                }
            }
        } else {
            for (number, scenario) in trace.scenarios.iter().enumerate() {
                match replay::compare(trace, scenario, way) {
                    Ok(picks) => counts.picks += picks,
                    Err(_) if counts.differing > 0 => counts.differing += 1,
                    Err(error) => {
                        counts.differing += 1;
                        let failure = format!("{title}, scenario {number}, {way:?}: {error:#}");
                        self.failures.push(failure);
                    }
                }
                counts.scenarios += 1;
            }
        }
        let all = self.counts.entry(key).or_default();
        all.scenarios = all.scenarios.max(counts.scenarios);
        all.picks = all.picks.max(counts.picks);
        all.ways += 1;
        all.differing += counts.differing;
    }

    /// What differed first, in each trace that did.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "kernel      scheduler  scenarios   picks  ways  differing"
        )?;
        let mut total = 0;
        for ((kernel, scheduler), counts) in &self.counts {
            let Counts {
                scenarios,
                picks,
                ways,
                differing,
            } = counts;
            total += picks;
            let lots = if scheduler == "twos" {
                "  (frequencies)"
            } else {
                ""
            };
            writeln!(
                f,
                "{kernel:11} {scheduler:10} {scenarios:9} {picks:7} {ways:5} {differing:10}{lots}"
            )?;
        }
        writeln!(f, "{total} picks in all")
    }
}
