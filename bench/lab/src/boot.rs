//! The options that describe the machine to boot.

use std::{env, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use lab::{
    kernel,
    machine::{Config, Machine, Memory},
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The kernel to boot [default: the first in $LAB_KERNEL, else the one that `lab kernel` builds]
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Main memory of the guest
    #[arg(long, value_name = "SIZE", default_value_t = Memory::DEFAULT)]
    memory: Memory,
    /// Processors of the guest (kernel 7.2 and later)
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..))]
    cpus: u8,
}

impl Options {
    /// Boots the machine with this program as process 1; builds a kernel first if there is none.
    pub(crate) fn boot(self) -> Result<Machine> {
        let kernel = match self.kernel {
            Some(kernel) => kernel,
            None => kernel::find_or_build()?,
        };
        let program = env::current_exe().context("finding this program")?;
        Machine::boot(&Config {
            kernel,
            memory: self.memory,
            cpus: self.cpus,
            init: vec![program.into_os_string()],
        })
    }
}
