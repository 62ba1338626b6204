//! Writes shell completions and manual pages of `ipvs-proxier` into a directory.
//!
//! ```text
//! cargo run -p proxier --example generate -- DIRECTORY
//! ```
//!
//! An example and not a command of the program: the two generators would add half a megabyte to a
//! binary that runs on every node, where people seldom type.

use std::path::Path;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _, ValueEnum as _};
use clap_complete::Shell;

fn main() -> anyhow::Result<()> {
    let directory = std::env::args_os().nth(1);
    let directory = directory.context("usage: generate DIRECTORY")?;
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory)?;
    let mut command = proxier::Cli::command();
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut command, "ipvs-proxier", directory)?;
    }
    // Without this, the pages of the commands would lack the program's name.
    command.build();
    page(&command, "ipvs-proxier", directory)?;
    for inner in command.get_subcommands() {
        page(
            inner,
            &format!("ipvs-proxier-{}", inner.get_name()),
            directory,
        )?;
    }
    Ok(())
}

/// Writes the manual page of a command.
fn page(command: &Command, name: &str, directory: &Path) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let command = command.clone().display_name(name.to_owned());
    clap_mangen::Man::new(command).render(&mut text)?;
    std::fs::write(directory.join(format!("{name}.8")), text)?;
    Ok(())
}
