//! A library in C that lets User-Mode Linux 6.1 run on a processor with AMX. `xstate.c` says why and how.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::kernel;

/// Returns the library that a kernel on this host must load, if any.
///
/// # Errors
///
/// If the library is needed and cannot be built.
pub(super) fn library() -> Result<Option<PathBuf>> {
    let processors = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    if processors.split_whitespace().any(|flag| flag == "amx_tile") {
        build().map(Some)
    } else {
        Ok(None)
    }
}

/// Compiles the library, once per user, with the C compiler that Rust links with.
fn build() -> Result<PathBuf> {
    kernel::in_cache("xstate", "so", SOURCE, compile).context("building a library for AMX")
}

fn compile(library: &Path) -> Result<()> {
    let source = library.with_extension("c");
    fs::write(&source, SOURCE).with_context(|| format!("writing {}", source.display()))?;
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(library)
        .arg(&source)
        .output()
        .context("starting cc")?;
    if !compiled.status.success() {
        bail!(
            "cc ended with {}: {}",
            compiled.status,
            String::from_utf8_lossy(&compiled.stderr)
        );
    }
    Ok(())
}

const SOURCE: &str = include_str!("xstate.c");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_can_be_loaded() {
        let library = build().unwrap();
        // The loader only warns if it cannot load a library.
        let output = Command::new("true")
            .env("LD_PRELOAD", &library)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
