//! What was compared: a line per kernel and scheduler.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

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
    differing: usize,
}

impl Report {
    /// Holds `trace`, which is called `title`, against the crate, in every way. A scenario ends at its
    /// first difference, and only the first of a trace is told.
    pub(crate) fn hold(&mut self, trace: &Trace, title: impl fmt::Display) {
        let key = (trace.kernel.clone(), trace.scheduler.clone());
        let counts = self.counts.entry(key).or_default();
        counts.scenarios += trace.scenarios.len();
        let mut failure = None;
        let mut note = |compared: Result<usize>, number: Option<usize>, way| match compared {
            Ok(picks) if way == Way::ALL[0] => counts.picks += picks,
            Ok(_) => {}
            Err(error) => {
                counts.differing += 1;
                let scenario = number.map(|number| format!(", scenario {number}"));
                let scenario = scenario.unwrap_or_default();
                failure.get_or_insert_with(|| format!("{title}{scenario}, {way:?}: {error:#}"));
            }
        };
        for way in Way::ALL {
            if trace.scheduler == "twos" {
                note(lots::compare(trace, way), None, way);
                continue;
            }
            for (number, scenario) in trace.scenarios.iter().enumerate() {
                note(replay::compare(trace, scenario, way), Some(number), way);
            }
        }
        self.failures.extend(failure);
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
                differing,
            } = counts;
            let ways = Way::ALL.len();
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
