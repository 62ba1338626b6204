//! `lab kernel`: which kernel, and building it.

use std::{
    io::{Write, stdout},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::Args;

use lab::kernel;

/// Print the path of the kernel, building it first if there is none
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

impl Arguments {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let kernel = kernel::find_or_build()?;
        let line = [kernel.as_os_str().as_bytes(), b"\n"].concat();
        stdout().write_all(&line).context("printing the path")?;
        Ok(ExitCode::SUCCESS)
    }
}
