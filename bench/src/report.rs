//! The report of `cluster`, `compare` and `relay`.
//!
//! ```text
//!  results ──▶ Report ──▶ tables on the terminal
//!     │           └─────▶ index.html, which needs no other file and no script
//!     └─────────────────▶ results.json
//! ```

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use plot::Plot;
use table::Table;

mod page;
pub(crate) mod plot;
pub(crate) mod progress;
pub(crate) mod table;

/// The results of a command, for readers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) title: String,
    /// Conditions and explanations, a paragraph each.
    pub(crate) notes: Vec<String>,
    pub(crate) sections: Vec<Section>,
}

/// A part of a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub(crate) title: String,
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<Table>,
    /// Only the page has them.
    pub(crate) plots: Vec<Plot>,
}

impl Report {
    /// Returns the report for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.title, self.notes.join("\n"));
        for section in &self.sections {
            text += &format!("\n{}\n", section.title);
            for note in &section.notes {
                text += &format!("{note}\n");
            }
            for table in &section.tables {
                text += &format!("\n{}", table.text());
            }
        }
        text
    }
}

/// Where a report goes.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// The folder for results.json and index.html [default: none are written].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Creates the folder. An error after the measurement would waste the work.
    pub(crate) fn prepare(&self) -> anyhow::Result<()> {
        let Some(folder) = &self.out else {
            return Ok(());
        };
        std::fs::create_dir_all(folder)
            .with_context(|| format!("creating the folder {}", folder.display()))
    }

    /// Writes both files and prints the tables or the JSON.
    pub(crate) fn finish(&self, results: &impl Serialize, report: &Report) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(results)?;
        if let Some(folder) = &self.out {
            for (name, text) in [("results.json", &json), ("index.html", &page::html(report))] {
                let path = folder.join(name);
                std::fs::write(&path, text)
                    .with_context(|| format!("writing {}", path.display()))?;
            }
        }
        if self.json {
            println!("{json}");
        } else {
            print!("{}", report.text());
        }
        Ok(())
    }
}
