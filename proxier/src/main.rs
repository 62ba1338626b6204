//! The program `ipvs-proxier`; see [`proxier`].

use std::io::Write as _;
use std::process::ExitCode;

// For its functions, which compiled code calls by name.
#[cfg(target_env = "musl")]
use memory_functions as _;
use proxier::{Cli, OneLine};

/// musl's own allocator returns memory to the kernel whenever a few equal blocks are free, and maps it again for
/// the next: 20,000 page faults in the first plan of a large cluster.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: heap::Heap = heap::Heap::new();

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
