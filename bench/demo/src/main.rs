//! The demonstrations of `./demo`.

#![expect(
    clippy::print_stdout,
    reason = "this program reports on standard output"
)]

use std::path::PathBuf;

use anyhow::{Context as _, bail};

mod kernel;
mod userspace;

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        None => userspace::run(),
        Some("kernel") => kernel::run(),
        Some(other) => bail!("unknown demonstration {other:?}"),
    }
}

/// Returns the path of the proxy: it is in this program's directory.
fn proxier() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    Ok(program.with_file_name("ipvs-proxier"))
}
