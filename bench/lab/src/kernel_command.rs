//! `lab kernel`: which kernel, and building it.

use std::{
    io::{Write, stdout},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;

use lab::kernel::{self, Flavour, Rebuild};

/// Print the path of the kernel, building it first if there is none
///
/// It is the first that $LAB_KERNEL names, else the one in ~/.cache/ipvs-proxier/lab, built from
/// Debian's linux-source (as root or with sudo its packages are installed, too).
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Build again, even if there is one
    #[arg(long)]
    rebuild: bool,
    /// One without iptables and ipset, whatever $LAB_KERNEL names
    #[arg(long)]
    no_iptables: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let kernel = match (self.no_iptables, self.rebuild) {
            (false, false) => kernel::find_or_build()?,
            (false, true) => kernel::build(Flavour::Full, Rebuild::Always)?,
            (true, false) => kernel::build(Flavour::WithoutIptables, Rebuild::IfMissing)?,
            (true, true) => kernel::build(Flavour::WithoutIptables, Rebuild::Always)?,
        };
        let line = [kernel.as_os_str().as_bytes(), b"\n"].concat();
        stdout().write_all(&line).context("printing the path")?;
        Ok(ExitCode::SUCCESS)
    }
}
