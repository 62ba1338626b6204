//! The directory of built kernels and libraries.

use std::{
    env,
    fs::{self, DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{FlockOperation, flock, statvfs},
    io::Errno,
};

use super::Flavour;

/// A directory of kernels and of libraries for them. A kernel's name has the source's version and a hash
/// of the configuration.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
}

/// The exclusive right to build, until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Cache {
    /// Returns the user's cache: `ipvs-proxier/lab` in `$XDG_CACHE_HOME` or `~/.cache`.
    ///
    /// The directory need not exist.
    pub(super) fn of_user() -> Result<Self> {
        let xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        // The XDG specification says to ignore relative paths.
        let xdg = xdg.filter(|directory| directory.is_absolute());
        let home = env::var_os("HOME").map(PathBuf::from);
        let home = home.filter(|directory| directory.is_absolute());
        match xdg.or_else(|| home.map(|home| home.join(".cache"))) {
            Some(directory) => Ok(Self {
                directory: directory.join("ipvs-proxier/lab"),
            }),
            None => bail!(
                "no cache directory for the lab kernel: set HOME or XDG_CACHE_HOME, or name a \
                 kernel with {}",
                super::VARIABLE
            ),
        }
    }

    /// Returns the last kernel that was built with the present configuration of `flavour`.
    pub(super) fn newest(&self, flavour: Flavour) -> Option<PathBuf> {
        let suffix = suffix(flavour.fragments());
        fs::read_dir(&self.directory)
            .ok()?
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                name.starts_with(PREFIX) && name.ends_with(&suffix)
            })
            .max_by_key(|entry| entry.metadata().and_then(|it| it.modified()).ok())
            .map(|entry| entry.path())
    }

    /// Returns the path for a kernel made from `version` of the source.
    pub(super) fn kernel(&self, version: &str, flavour: Flavour) -> PathBuf {
        let name = format!("{PREFIX}{version}{}", suffix(flavour.fragments()));
        self.directory.join(name)
    }

    /// Returns the path for the log of a build.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("build.log")
    }

    /// Returns the path for a file made from `source`.
    pub(super) fn made_from(&self, name: &str, extension: &str, source: &str) -> PathBuf {
        let name = format!("{name}{}.{extension}", suffix(&[source]));
        self.directory.join(name)
    }

    /// Creates an empty directory for the build of a kernel, on a file system with enough space.
    pub(super) fn kernel_scratch(&self) -> Result<Scratch> {
        let directory = self.directory.join(SCRATCH);
        let text = directory.to_string_lossy();
        if text.contains([' ', ':', '\t']) {
            bail!(
                "the path {text} contains a space or a colon, and Linux cannot be built there; set \
                 XDG_CACHE_HOME to another directory"
            );
        }
        let stat = statvfs(&self.directory)
            .with_context(|| format!("examining {}", self.directory.display()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < NEEDED {
            bail!(
                "building a kernel needs {} MiB in {}, and {} MiB are free; set XDG_CACHE_HOME to a \
                 directory with more space",
                NEEDED >> 20,
                self.directory.display(),
                free >> 20
            );
        }
        self.scratch()
    }

    /// Creates an empty directory.
    pub(super) fn scratch(&self) -> Result<Scratch> {
        let directory = self.directory.join(SCRATCH);
        // This process has the lock, so an existing directory was left by a killed process.
        remove(&directory)?;
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        Ok(Scratch { directory })
    }

    /// Creates the cache if it is missing, and waits until no other process builds in it.
    pub(super) fn lock(&self) -> Result<Lock> {
        let shown = self.directory.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.directory)
            .with_context(|| format!("making the cache {shown} (XDG_CACHE_HOME moves it)"))?;
        let file = File::create(self.directory.join("lock"))
            .with_context(|| format!("writing to {shown} (XDG_CACHE_HOME moves it)"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                eprintln!("lab: another process is building in the cache; waiting for it");
                flock(&file, FlockOperation::LockExclusive).context("waiting for a lock")?;
            }
            Err(error) => return Err(error).context("locking the cache"),
        }
        Ok(Lock { _file: file })
    }
}

/// A directory that is removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: PathBuf,
}

impl Scratch {
    pub(super) fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.directory) {
            eprintln!("lab: {error:#}");
        }
    }
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the end of a file's name: the FNV-1a hash of what it is made from.
///
/// The standard library's hash may change between releases, which would rebuild the kernel.
fn suffix(fragments: &[&str]) -> String {
    let bytes = fragments.iter().flat_map(|fragment| fragment.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("-{hash:016x}")
}

const PREFIX: &str = "linux-";
const SCRATCH: &str = "building";
/// The unpacked source is 1.5 GiB, the objects another 0.3.
const NEEDED: u64 = 2560 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_the_configuration_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: directory.path().join("lab"),
        };
        assert_eq!(cache.newest(Flavour::Full), None);
        let _lock = cache.lock().unwrap();
        assert_eq!(cache.newest(Flavour::Full), None);
        fs::write(cache.directory.join("linux-9.9-0123456789abcdef"), "").unwrap();
        fs::create_dir(cache.directory.join("building")).unwrap();
        fs::write(cache.log(), "").unwrap();
        assert_eq!(cache.newest(Flavour::Full), None);
        let other = cache.kernel("6.1", Flavour::WithoutIptables);
        fs::write(&other, "").unwrap();
        assert_eq!(cache.newest(Flavour::Full), None);
        let kernel = cache.kernel("6.1", Flavour::Full);
        fs::write(&kernel, "").unwrap();
        assert_eq!(cache.newest(Flavour::Full), Some(kernel));
        assert_eq!(cache.newest(Flavour::WithoutIptables), Some(other));
    }

    #[test]
    fn a_dropped_scratch_directory_is_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache {
            directory: directory.path().to_owned(),
        };
        let left = directory.path().join("building/left");
        fs::create_dir_all(&left).unwrap();
        let scratch = cache.scratch().unwrap();
        assert!(!left.exists());
        assert!(scratch.path().is_dir());
        drop(scratch);
        assert!(!directory.path().join("building").exists());
    }

    #[test]
    fn configurations_have_different_names() {
        assert_eq!(suffix(&[]), "-cbf29ce484222325");
        assert_eq!(suffix(&["a"]), "-af63dc4c8601ec8c");
    }
}
