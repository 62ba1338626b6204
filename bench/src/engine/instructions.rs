//! Counts instructions per step with callgrind.
//!
//! The counts are exact and, unlike times, do not depend on the load of the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use super::node::Step;
use crate::process;

/// The module of the functions whose instructions are counted.
const MODULE: &str = "bench::engine::node";

/// Runs `program` under callgrind and returns the median number of instructions of each step.
///
/// Instructions in the kernel are not included.
pub(crate) fn count(program: &Command) -> anyhow::Result<BTreeMap<Step, u64>> {
    let directory = process::temporary("callgrind");
    std::fs::create_dir_all(&directory)?;
    let mut callgrind = Command::new("valgrind");
    callgrind.args(["--tool=callgrind", "--quiet"]);
    callgrind.arg(format!(
        "--callgrind-out-file={}",
        directory.join("out").display()
    ));
    for step in Step::ALL {
        // Each dump has the counts since the last one. The dump before a step is ignored, so the
        // dump after it has the counts of the step. With a wildcard callgrind dumps only once.
        let function = format!("{MODULE}::{}", step.name());
        callgrind.arg(format!("--dump-before={function}"));
        callgrind.arg(format!("--dump-after={function}"));
    }
    callgrind
        .arg(program.get_program())
        .args(program.get_args());
    let output = callgrind
        .stderr(Stdio::inherit())
        .output()
        .context("running valgrind (install the package valgrind)")?;
    ensure!(output.status.success(), "valgrind: {}", output.status);
    let counted = read(&directory);
    std::fs::remove_dir_all(&directory)?;
    counted
}

/// Reads the dumps of callgrind, one file per executed step.
fn read(directory: &Path) -> anyhow::Result<BTreeMap<Step, u64>> {
    let mut samples: BTreeMap<Step, Vec<u64>> = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let text = std::fs::read_to_string(entry?.path())?;
        if let Some((step, instructions)) = sample(&text) {
            samples.entry(step).or_default().push(instructions);
        }
    }
    let median = |(step, mut samples): (Step, Vec<u64>)| {
        samples.sort_unstable();
        (step, samples[samples.len() / 2])
    };
    let counted: BTreeMap<Step, u64> = samples.into_iter().map(median).collect();
    ensure!(
        counted.len() == Step::ALL.len(),
        "callgrind measured {} of {} steps",
        counted.len(),
        Step::ALL.len()
    );
    Ok(counted)
}

/// Returns the step of a callgrind dump and its instructions; `None` for other dumps.
fn sample(text: &str) -> Option<(Step, u64)> {
    let after = |prefix: &str| text.lines().find_map(|line| line.strip_prefix(prefix));
    let trigger = after("desc: Trigger: --dump-after=")?;
    let function = trigger.strip_prefix(MODULE)?.strip_prefix("::")?;
    let step = Step::ALL
        .into_iter()
        .find(|step| function.starts_with(step.name()))?;
    let totals = after("totals: ").or_else(|| after("summary: "))?;
    let instructions = totals.split_whitespace().next()?.parse().ok()?;
    Some((step, instructions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_names_its_step() {
        let text = "version: 1\ncmd: bench\npart: 3\n\ndesc: Trigger: \
                    --dump-after=bench::engine::node::drained\nevents: Ir\nsummary: 81213\n\n\
                    fn=(1) x\n16 400\n\ntotals: 81213\n";
        assert_eq!(sample(text), Some((Step::Drained, 81_213)));
        let last = "desc: Trigger: Program termination\nevents: Ir\ntotals: 7\n";
        assert_eq!(sample(last), None);
    }
}
