//! `lab`: a real kernel with IPVS, as an ordinary process.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use lab::guest;

mod boot;
mod interrupt;
mod kernel_command;
mod run;
mod shell;

/// Run commands on a Linux kernel with IPVS and nf_tables, without root.
///
/// The kernel is User-Mode Linux: an ordinary process. Commands see the files of this machine with
/// your rights, but are uid 0 with all capabilities, in a network of their own.
#[derive(Debug, Parser)]
#[command(name = "lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Shell(shell::Arguments),
    Kernel(kernel_command::Arguments),
}

fn main() -> ExitCode {
    guest::play_role();
    let result = match Arguments::parse().command {
        Command::Run(arguments) => arguments.run(),
        Command::Shell(arguments) => arguments.run(),
        Command::Kernel(arguments) => arguments.run(),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::from(LAB_FAILED)
        }
    }
}

/// The exit status when the lab itself failed, the same as env(1) uses.
const LAB_FAILED: u8 = 125;
