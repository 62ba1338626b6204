//! The machine of the measurements.

use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// The host of the lab, and the state of the sources.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) processors: usize,
    /// The commit of the sources, with `-dirty` after uncommitted changes; empty without git.
    pub(crate) commit: String,
    pub(crate) is_release_build: bool,
    /// The load average of the last minute, before the first and after the last measurement. The
    /// measurement itself adds about 1.
    pub(crate) load: [f64; 2],
}

impl Machine {
    pub(crate) fn observe() -> anyhow::Result<Self> {
        let processors =
            std::fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
        let model = processors
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let load = load()?;
        Ok(Self {
            processor: model
                .unwrap_or_default()
                .trim_start_matches(['\t', ' ', ':'])
                .to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            commit: commit().unwrap_or_default(),
            is_release_build: !cfg!(debug_assertions),
            load: [load, load],
        })
    }

    /// Records the load at the end.
    pub(crate) fn observe_end(&mut self) -> anyhow::Result<()> {
        self.load[1] = load()?;
        Ok(())
    }

    /// Returns a sentence for reports.
    pub(crate) fn describe(&self) -> String {
        let build = if self.is_release_build {
            ""
        } else {
            "; NOT A RELEASE BUILD"
        };
        format!(
            "{} x {}, commit {}, load {:.1} before and {:.1} after{build}",
            self.processors, self.processor, self.commit, self.load[0], self.load[1],
        )
    }
}

fn load() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("reading /proc/loadavg")?;
    let first = text.split(' ').next().unwrap_or_default();
    Ok(first.parse()?)
}

fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=10"])
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned())
}
