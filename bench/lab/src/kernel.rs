//! Which kernel to boot.
//!
//! `LAB_KERNEL` names one, or several with `:` between them. Without it there is one in the user's
//! cache, once [`find_or_build`] was called: `lab kernel` does that, and so do `lab run` and
//! `lab shell`. Tests never build.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{Access, access};

mod build;
mod cache;
mod progress;
mod source;

use self::cache::Cache;

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

/// The kernel in the user's cache, if one was built with today's configuration.
///
/// # Errors
///
/// There is no directory for a cache.
pub fn cached() -> Result<Option<PathBuf>> {
    Ok(Cache::of_user()?.newest(Flavour::Full))
}

/// The kernel for a command: the first that `LAB_KERNEL` names, else the one in the cache, which is
/// [built](build()) when it is not there yet.
///
/// # Errors
///
/// A named kernel cannot be used, or the build failed.
pub fn find_or_build() -> Result<PathBuf> {
    if let Some(kernel) = named()?.into_iter().next() {
        return Ok(kernel);
    }
    match cached()? {
        Some(kernel) => Ok(kernel),
        None => build(Flavour::Full, Rebuild::IfMissing),
    }
}

/// What a kernel is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Everything that tests and comparisons need. It is what tests run on when none is named.
    Full,
    /// The same without iptables and ipset: what a node has to do with.
    WithoutIptables,
}

impl Flavour {
    /// What it has beyond User-Mode Linux's defaults, and what not, each a file for Kconfig. What
    /// comes later prevails.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Full => &[FRAGMENT],
            Self::WithoutIptables => &[FRAGMENT, NO_IPTABLES],
        }
    }
}

/// What [`build`] does about a kernel that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebuild {
    /// Nothing: takes it.
    IfMissing,
    /// Builds it again.
    Always,
}

/// Builds a kernel from Debian's source package and puts it into the cache. Takes minutes, and
/// says on stderr how far it is.
///
/// On Debian, as root or with a `sudo` that asks no password, installs what it needs.
///
/// # Errors
///
/// Something is missing, and then the error names it; or the build failed, and then it ends with
/// the last lines of its log.
pub fn build(flavour: Flavour, rebuild: Rebuild) -> Result<PathBuf> {
    let cache = Cache::of_user()?;
    let _lock = cache.lock()?;
    // Another process may have built it while this one waited for the lock.
    if let (Rebuild::IfMissing, Some(kernel)) = (rebuild, cache.newest(flavour)) {
        return Ok(kernel);
    }
    build::run(&cache, flavour)
}

/// `path` from the root, if it can be executed.
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
