//! All results of a run of `bench cluster`.

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::outcome::Outcome;

/// Results and where they were measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Results {
    /// Reads the results of an earlier run.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("parsing {}", path.display()))
    }

    /// Returns the names of the scenarios in order.
    pub(crate) fn scenarios(&self) -> Vec<&str> {
        unique(self.outcomes.iter().map(|it| it.scenario.name.as_str()))
    }

    /// Returns the names of the proxies in order.
    pub(crate) fn subjects(&self) -> Vec<&str> {
        unique(self.outcomes.iter().map(|it| it.subject.as_str()))
    }

    /// Returns the outcomes of a scenario.
    pub(crate) fn of(&self, scenario: &str) -> impl Iterator<Item = &Outcome> + Clone {
        let outcomes = self.outcomes.iter();
        outcomes.filter(move |it| it.scenario.name == scenario)
    }

    /// Returns the number of outcomes that are incomplete, except the late ones.
    pub(crate) fn failures(&self) -> usize {
        let failed = |it: &&Outcome| {
            !it.is_late && (it.steps.len() < it.scenario.phases.len() || it.start.is_none())
        };
        self.outcomes.iter().filter(failed).count()
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut unique = Vec::new();
    for name in names {
        if !unique.contains(&name) {
            unique.push(name);
        }
    }
    unique
}
