//! The program `ipvs-proxier`; see [`proxier`].

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use proxier::Cli;

fn main() -> ExitCode {
    proxier::exit_on_panic();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Standard output is for results: `plan -o json` and `status` must stay parseable.
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // If standard error is closed, only the exit code remains.
            let _ = writeln!(std::io::stderr(), "ipvs-proxier: {error:#}");
            ExitCode::FAILURE
        }
    }
}
