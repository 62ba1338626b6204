//! The lock of a ledger: one process at a time programs a node.
//!
//! Two processes would delete what the other one created, and each would rewrite the ledger without
//! the other's records. The kernel releases the lock (`flock`) when the process ends, however it ends.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use super::file::create_directory;

/// The lock of a ledger's file, held until it is dropped.
#[derive(Debug)]
pub(crate) struct LedgerLock {
    path: PathBuf,
    /// Closing it releases the lock.
    _file: File,
}

/// Why the lock is not held.
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
    /// The lock cannot be tried.
    #[error("{}: {source}", .path.display())]
    Unusable { path: PathBuf, source: io::Error },
}

impl LedgerLock {
    /// Locks the ledger at `path`: the file beside it whose name has the extension `lock` added.
    ///
    /// # Errors
    /// When another process holds the lock, or the file system cannot tell.
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
    /// When the file cannot be removed.
    pub(crate) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Returns the locked file, or the number of the process that holds its lock.
fn open(path: &Path) -> io::Result<Result<File, String>> {
    create_directory(path)?;
    let mut options = File::options();
    // Not truncated: the number in it may be that of the process that holds the lock.
    let options = options.create(true).truncate(false).read(true).write(true);
    let mut file = options.open(path)?;
    match file.try_lock() {
        Ok(()) => {
            // Without its number the lock holds all the same.
            let _ = write_pid(&mut file);
            Ok(Ok(file))
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            file.read_to_string(&mut pid)?;
            let pid = pid.trim();
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

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_folder_that_cannot_be_written_is_another_error() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("run"), "not a folder").unwrap();
        let error = LedgerLock::acquire(&directory.path().join("run/state")).unwrap_err();
        assert!(matches!(error, LockError::Unusable { .. }), "{error}");
    }
}
