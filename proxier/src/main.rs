//! The program `ipvs-proxier`; see [`proxier`].

use std::io::Write as _;
use std::process::ExitCode;

use proxier::Cli;

fn main() -> ExitCode {
    proxier::exit_on_panic();
    match Cli::from_process().run() {
        Ok(code) => code,
        Err(error) => {
            // If standard error is closed, only the exit code remains.
            let _ = writeln!(std::io::stderr(), "ipvs-proxier: {error:#}");
            ExitCode::FAILURE
        }
    }
}
