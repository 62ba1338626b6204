//! The kernel to boot.
//!
//! `LAB_KERNEL` names one kernel, or several separated by `:`. Without it, the kernel is the one in
//! the user's cache. `lab kernel`, `lab run` and `lab shell` build it if it is missing; tests never
//! do.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{Access, access};

mod build;
mod cache;
mod progress;
mod source;

use self::cache::Cache;

/// The variable with the paths of kernels.
pub const VARIABLE: &str = "LAB_KERNEL";

/// Returns the kernels in `LAB_KERNEL`, in order; none if it is unset or empty.
///
/// # Errors
///
/// If a path does not name an executable file.
pub fn named() -> Result<Vec<PathBuf>> {
    let Some(value) = env::var_os(VARIABLE) else {
        return Ok(Vec::new());
    };
    env::split_paths(&value)
        .filter(|path| !path.as_os_str().is_empty())
        .map(|path| checked(&path).with_context(|| format!("{VARIABLE}={}", value.display())))
        .collect()
}

/// Returns the kernel in the user's cache that was built with the present configuration, if any.
///
/// # Errors
///
/// If neither HOME nor XDG_CACHE_HOME names a directory.
pub fn cached() -> Result<Option<PathBuf>> {
    Ok(Cache::of_user()?.newest(Flavour::Full))
}

/// Returns the first kernel in `LAB_KERNEL`, else the one in the cache, else [builds](build()) one.
///
/// # Errors
///
/// If a kernel in `LAB_KERNEL` is unusable, or the build fails.
pub fn find_or_build() -> Result<PathBuf> {
    if let Some(kernel) = named()?.into_iter().next() {
        return Ok(kernel);
    }
    match cached()? {
        Some(kernel) => Ok(kernel),
        None => build(Flavour::Full, Rebuild::IfMissing),
    }
}

/// The set of features of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// All features that tests and comparisons need. Tests without `LAB_KERNEL` run on it.
    Full,
    /// The same without iptables and ipset, as on a minimal node.
    WithoutIptables,
}

impl Flavour {
    /// Returns Kconfig files that change User-Mode Linux's defaults; a later file overrides an
    /// earlier.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Full => &[FRAGMENT],
            Self::WithoutIptables => &[FRAGMENT, NO_IPTABLES],
        }
    }
}

/// The action of [`build()`] if the kernel exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// Returns the existing kernel.
    IfMissing,
    /// Builds the kernel again.
    Always,
}

/// Builds a kernel from Debian's source package and puts it into the cache.
///
/// Takes about ten minutes and prints its progress on stderr. On Debian, as root or with a `sudo`
/// that asks no password, it also installs the packages that it needs.
///
/// # Errors
///
/// If a package is missing, or the build fails, with the last lines of its log.
pub fn build(flavour: Flavour, rebuild: Rebuild) -> Result<PathBuf> {
    let cache = Cache::of_user()?;
    let _lock = cache.lock()?;
    // Another process may have built it while this one waited for the lock.
    if let (Rebuild::IfMissing, Some(kernel)) = (rebuild, cache.newest(flavour)) {
        return Ok(kernel);
    }
    build::run(&cache, flavour)
}

/// Returns a file of the user's cache that `make` makes from `source`, and makes it if it is missing.
///
/// The file's name has `name`, a hash of `source` and `extension`. `make` gets a path to write to.
///
/// # Errors
///
/// If the cache cannot be written to, or `make` fails.
pub(crate) fn in_cache(
    name: &str,
    extension: &str,
    source: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = Cache::of_user()?;
    let file = cache.made_from(name, extension, source);
    if file.exists() {
        return Ok(file);
    }
    let _lock = cache.lock()?;
    // Another process may have made it while this one waited for the lock.
    if !file.exists() {
        let scratch = cache.scratch()?;
        let made = scratch.path().join(name).with_extension(extension);
        make(&made)?;
        // Both paths are on one file system, so the rename is atomic.
        fs::rename(&made, &file).with_context(|| format!("moving it to {}", file.display()))?;
    }
    Ok(file)
}

/// Returns the absolute form of `path` if it is an executable file.
fn checked(path: &Path) -> Result<PathBuf> {
    let absolute = path
        .canonicalize()
        .with_context(|| path.display().to_string())?;
    if !absolute.is_file() || access(&absolute, Access::EXEC_OK).is_err() {
        bail!("{} is not an executable file", path.display());
    }
    Ok(absolute)
}

const FRAGMENT: &str = include_str!("../lab.config");
const NO_IPTABLES: &str = include_str!("../no-iptables.config");
