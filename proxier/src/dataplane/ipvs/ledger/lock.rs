//! The lock of a ledger: one process at a time programs a node.
//!
//! Two processes would delete each other's virtual servers, and each would rewrite the ledger without
//! the other's records. The kernel releases the lock (`flock`) whenever the process ends, even if it is
//! killed.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::file::{create_directory, open_itself};

/// The lock of a ledger's file, held until it is dropped.
#[derive(Debug)]
pub(crate) struct LedgerLock {
    path: PathBuf,
    /// Closing it releases the lock.
    _file: File,
}

/// The error of acquiring the lock.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another process holds it.
    #[error(
        "process {pid} runs on this node already and holds {}; stop it first",
        .path.display()
    )]
    Held {
        /// The number of the other process, in its own process namespace.
        pid: String,
        path: PathBuf,
    },
    /// The file of the lock cannot be opened, read or locked.
    #[error("{}: {source}", .path.display())]
    Unusable { path: PathBuf, source: io::Error },
}

impl LedgerLock {
    /// Locks the file beside the ledger whose name has the extension `lock` added.
    ///
    /// Not the ledger's file itself, which a rewrite replaces.
    ///
    /// # Errors
    /// If another process holds the lock, or the file of the lock is unusable.
    pub(crate) fn acquire(ledger: &Path) -> Result<Self, LockError> {
        let mut path = ledger.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        match open(&path) {
            Ok(Ok(file)) => Ok(Self { path, _file: file }),
            Ok(Err(pid)) => Err(LockError::Held { pid, path }),
            Err(source) => Err(LockError::Unusable { path, source }),
        }
    }

    /// Removes the file of the lock, then releases the lock.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub(crate) fn remove(self) -> io::Result<()> {
        // Still locked. After the release, the file might be the one that another process has just
        // locked.
        std::fs::remove_file(&self.path)
    }
}

/// Returns the locked file, or the number of the process that holds its lock.
fn open(path: &Path) -> io::Result<Result<File, String>> {
    create_directory(path)?;
    let mut options = File::options();
    // Not truncated, because it may have the number of the process that holds the lock.
    let options = options.create(true).truncate(false).read(true).write(true);
    lock(open_itself(options, path)?, path)
}

/// Locks the file that was opened at `path`.
fn lock(mut file: File, path: &Path) -> io::Result<Result<File, String>> {
    match file.try_lock() {
        // Its last holder removed it meanwhile. Another process may hold the lock of a new one.
        Ok(()) if !is_at(&file, path)? => open(path),
        Ok(()) => {
            // Only the message of a second process needs the number, so a failure does no harm.
            let _ = write_pid(&mut file);
            Ok(Ok(file))
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            let pid = pid.trim();
            // The other process has locked the file and not written its number yet.
            let known = if pid.is_empty() {
                "of unknown number"
            } else {
                pid
            };
            Ok(Err(known.to_owned()))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns whether `path` still leads to the file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => Ok(place(found?) == place(file.metadata()?)),
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn one_process_at_a_time_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("run/state.jsonl");
        let lock = LedgerLock::acquire(&ledger).unwrap();
        let refused = LedgerLock::acquire(&ledger).unwrap_err().to_string();
        let expected = format!(
            "process {} runs on this node already and holds {}.lock; stop it first",
            std::process::id(),
            ledger.display()
        );
        assert_eq!(refused, expected);
        drop(lock);
        LedgerLock::acquire(&ledger).unwrap().remove().unwrap();
        LedgerLock::acquire(&ledger).unwrap();
    }

    /// A process opens the file, and its holder removes it before the process locks it.
    #[test]
    fn a_file_that_its_holder_removes_is_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("state");
        for has_next in [false, true] {
            let first = LedgerLock::acquire(&ledger).unwrap();
            let path = first.path.clone();
            let opened = File::options().read(true).write(true).open(&path).unwrap();
            first.remove().unwrap();
            let next = has_next.then(|| LedgerLock::acquire(&ledger).unwrap());
            let locked = lock(opened, &path).unwrap();
            // Whoever has the lock keeps all others out.
            assert_eq!(locked.is_err(), has_next);
            assert!(LedgerLock::acquire(&ledger).is_err());
            drop((locked, next));
        }
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        std::fs::write(&victim, "kept").unwrap();
        let ledger = directory.path().join("state");
        symlink(&victim, directory.path().join("state.lock")).unwrap();
        let error = LedgerLock::acquire(&ledger).unwrap_err();
        assert!(matches!(error, LockError::Unusable { .. }), "{error}");
        assert!(
            error
                .to_string()
                .ends_with("it is a symbolic link, which is not followed")
        );
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_another_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run"), "not a folder").unwrap();
        let error = LedgerLock::acquire(&directory.path().join("run/state")).unwrap_err();
        assert!(matches!(error, LockError::Unusable { .. }), "{error}");
    }
}
