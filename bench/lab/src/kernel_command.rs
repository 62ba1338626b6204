//! `lab kernel`: prints the path of the kernel, or builds it.

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
/// The kernel is the first in $LAB_KERNEL, else the one in ~/.cache/ipvs-proxier/lab, built from
/// Debian's linux-source. As root or with sudo, this also installs the packages that the build needs.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Build the kernel even if it exists
    #[arg(long)]
    rebuild: bool,
    /// Use a kernel without iptables and ipset, and ignore $LAB_KERNEL
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
