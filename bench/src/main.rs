//! Benchmarks of ipvs-proxier.
//!
//! Measurements that need a kernel run in the lab: this program boots a User-Mode Linux kernel and
//! starts itself again inside. A system call costs about 70 times more in the lab than on a real
//! kernel, so each time is compared with a peer's or a limit's time from the same run.

#![expect(clippy::print_stdout, reason = "reports go there")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod cluster;
mod compare;
mod engine;
mod figures;
mod inside;
mod netlink;
mod nftables;
mod process;
mod random;
mod relay;
mod replay;
mod report;

/// Benchmarks of ipvs-proxier.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare proxies in a large cluster with an API server.
    Cluster(cluster::Flags),
    /// Compare the schedulers in a simulation.
    Compare(compare::Flags),
    /// Measure CPU time, system calls, memory, start and scrapes of the daemon.
    Engine(engine::Flags),
    /// Compare programming and reading an IPVS table with pre-encoded messages and ipvsadm.
    Netlink(netlink::Flags),
    /// Compare writing and reading packet rules with nft.
    Nftables(nftables::Flags),
    /// Compare the relay of the userspace dataplane with HAProxy, nginx and the barest relay.
    Relay(relay::Flags),
    /// Replay a trace (JSON lines) through the schedulers and print each pick.
    Replay,
}

fn main() -> ExitCode {
    lab::guest::play_role();
    let result = match Cli::parse().command {
        Command::Cluster(flags) => flags.run(),
        Command::Compare(flags) => flags.run(),
        Command::Engine(flags) => flags.run(),
        Command::Netlink(flags) => flags.run(),
        Command::Nftables(flags) => flags.run(),
        Command::Relay(flags) => flags.run(),
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
