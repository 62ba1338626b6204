//! Libraries in C that User-Mode Linux loads before that of the system, because Linux 6.1 needs them. Each
//! source says why and how.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::kernel;

/// The name and the source of the library that keeps the kernel's own stack mapped.
const STACK: (&str, &str) = ("stack", include_str!("preload/stack.c"));

/// The name and the source of the library for processors with AMX.
const XSTATE: (&str, &str) = ("xstate", include_str!("preload/xstate.c"));

/// Returns the value of `LD_PRELOAD` for a kernel on this host.
///
/// # Errors
///
/// If a library cannot be built.
pub(super) fn libraries() -> Result<OsString> {
    let processors = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    let mut libraries = vec![build(STACK)?];
    if processors.split_whitespace().any(|flag| flag == "amx_tile") {
        libraries.push(build(XSTATE)?);
    }
    env::join_paths(libraries).context("listing the libraries for the lab's kernel")
}

/// Compiles a library, once per user, with the C compiler that Rust links with.
fn build((name, source): (&str, &str)) -> Result<PathBuf> {
    kernel::in_cache(name, "so", source, |library| {
        compile(source, library, &["-shared", "-fPIC"])
    })
    .with_context(|| format!("building the library {name} for the lab's kernel"))
}

fn compile(source: &str, output: &Path, options: &[&str]) -> Result<()> {
    let file = output.with_extension("c");
    fs::write(&file, source).with_context(|| format!("writing {}", file.display()))?;
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror"])
        .args(options)
        .arg("-o")
        .arg(output)
        .arg(&file)
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn each_library_can_be_loaded() {
        for library in [STACK, XSTATE] {
            // The loader only warns if it cannot load a library.
            let output = Command::new("true")
                .env("LD_PRELOAD", build(library).unwrap())
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        }
    }

    #[test]
    fn a_program_that_unmaps_a_range_around_its_stack_keeps_the_stack() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("stack_test");
        compile(include_str!("preload/stack_test.c"), &program, &[]).unwrap();
        let bare = Command::new(&program).status().unwrap();
        assert_eq!(bare.signal(), Some(11), "{bare}");
        let status = Command::new(&program)
            .env("LD_PRELOAD", build(STACK).unwrap())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}
