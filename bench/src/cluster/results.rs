//! All results of a run of `bench cluster`.

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::outcome::Outcome;
use super::page;

/// Results and where they were measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    /// Returns the names of the scenarios in order.
    pub(crate) fn scenarios(&self) -> Vec<&str> {
        unique(self.outcomes.iter().map(|it| it.scenario.name.as_str()))
    }

    /// Returns the names of the proxies in order.
    pub(crate) fn subjects(&self) -> Vec<&str> {
        unique(self.outcomes.iter().map(|it| it.subject.as_str()))
    }

    /// Returns the outcomes of a proxy in a scenario, one per round.
    pub(crate) fn of(&self, scenario: &str, subject: &str) -> Vec<&Outcome> {
        let is_asked = |it: &&Outcome| it.scenario.name == scenario && it.subject == subject;
        self.outcomes.iter().filter(is_asked).collect()
    }

    /// Returns the number of outcomes that are incomplete.
    pub(crate) fn failures(&self) -> usize {
        let failed =
            |it: &&Outcome| it.steps.len() < it.scenario.phases.len() || it.start.is_none();
        self.outcomes.iter().filter(failed).count()
    }

    /// Writes `results.json` and `index.html`.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)?;
        for (name, text) in [
            ("results.json", serde_json::to_string_pretty(self)?),
            ("index.html", page::page(self)),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
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
