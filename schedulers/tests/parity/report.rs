//! A table of the compared picks: a line per kernel and scheduler.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

use crate::parity::frequency;
use crate::parity::replay::{self, Mode};
use crate::trace::Trace;

/// Counts per kernel and scheduler, and the first difference of each trace.
#[derive(Debug, Default)]
pub(crate) struct Report {
    counts: BTreeMap<(String, String), Counts>,
    failures: Vec<String>,
}

/// The counts of one scheduler.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    scenarios: usize,
    picks: usize,
    differing: usize,
}

impl Report {
    /// Compares `trace` with the crate in every mode. `title` names the trace in failures.
    ///
    /// A scenario ends at its first difference. Only the first difference of a trace is reported.
    pub(crate) fn compare(&mut self, trace: &Trace, title: impl fmt::Display) {
        let key = (trace.kernel.clone(), trace.scheduler.clone());
        let counts = self.counts.entry(key).or_default();
        counts.scenarios += trace.scenarios.len();
        let mut failure = None;
        let mut note = |compared: Result<usize>, number: Option<usize>, mode| match compared {
            Ok(picks) if mode == Mode::ALL[0] => counts.picks += picks,
            Ok(_) => {}
            Err(error) => {
                counts.differing += 1;
                let scenario = number.map(|number| format!(", scenario {number}"));
                let scenario = scenario.unwrap_or_default();
                failure.get_or_insert_with(|| format!("{title}{scenario}, {mode:?}: {error:#}"));
            }
        };
        for mode in Mode::ALL {
            if trace.scheduler == "twos" {
                note(frequency::compare(trace, mode), None, mode);
                continue;
            }
            for (number, scenario) in trace.scenarios.iter().enumerate() {
                note(replay::compare(trace, scenario, mode), Some(number), mode);
            }
        }
        self.failures.extend(failure);
    }

    /// Returns the first difference of each trace that has one.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "kernel      scheduler  scenarios   picks  modes  differing"
        )?;
        let mut total = 0;
        for ((kernel, scheduler), counts) in &self.counts {
            let Counts {
                scenarios,
                picks,
                differing,
            } = counts;
            let modes = Mode::ALL.len();
            total += picks;
            let remark = if scheduler == "twos" {
                "  (frequencies)"
            } else {
                ""
            };
            writeln!(
                f,
                "{kernel:11} {scheduler:10} {scenarios:9} {picks:7} {modes:6} {differing:10}{remark}"
            )?;
        }
        writeln!(f, "{total} picks in total")
    }
}
