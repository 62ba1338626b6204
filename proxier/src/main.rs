//! The program `ipvs-proxier`; see [`proxier`].
//!
//! The static program has dlmalloc instead of musl's allocator, which unmaps a group of equal blocks when the last one is
//! freed and maps it again for the next object.

use std::io::Write as _;
use std::process::ExitCode;

use proxier::{Cli, OneLine};

/// musl's own allocator returns memory to the kernel whenever a few equal blocks are free, and maps it again for
/// the next. The first plan of a large cluster would be thousands of such calls.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    proxier::exit_on_panic();
    match Cli::from_process().run() {
        Ok(code) => code,
        Err(error) => {
            // If standard error is closed, only the exit code remains.
            let text = OneLine(format_args!("{error:#}"));
            let _ = writeln!(std::io::stderr(), "ipvs-proxier: {text}");
            ExitCode::FAILURE
        }
    }
}
