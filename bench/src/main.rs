//! Measurements of ipvs-proxier, and its demonstration.
//!
//! Everything that needs a kernel runs in the lab: this program boots one and starts itself again
//! inside. Times are compared with those of a peer or of a limit in the same run; alone they mean
//! little, since a system call costs about 70 times more in the lab than outside.

#![expect(
    clippy::print_stdout,
    reason = "a report on standard output is what this program is for"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod compare;
mod demo;
mod engine;
mod figures;
mod inside;
mod netlink;
mod nftables;
mod replay;

/// Measurements of ipvs-proxier, and its demonstration.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The schedulers side by side, in a simulation: table, CSV, JSON, HTML.
    Compare(compare::Flags),
    /// Programs example manifests into a real kernel and asks Services through their addresses.
    Demo {
        /// The program ipvs-proxier [default: the one beside this program].
        #[arg(long, value_name = "PATH")]
        proxier: Option<PathBuf>,
    },
    /// What a change costs the engine in time, system calls and memory.
    Engine(engine::Flags),
    /// IPVS over netlink, against the limit (raw pre-encoded messages) and against ipvsadm.
    Netlink(netlink::Flags),
    /// Packet rules over netlink, against nft.
    Nftables(nftables::Flags),
    /// What the schedulers pick in a trace: JSON lines in, one line per pick out.
    Replay,
}

fn main() -> ExitCode {
    lab::guest::play_role();
    let result = match Cli::parse().command {
        Command::Compare(flags) => flags.run(),
        Command::Demo { proxier } => demo::run(proxier),
        Command::Engine(flags) => flags.run(),
        Command::Netlink(flags) => flags.run(),
        Command::Nftables(flags) => flags.run(),
        Command::Replay => replay::run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
