//! Follows manifest files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::daemon::Message;
use crate::manifests;

/// How often the files' metadata is read.
const POLL: Duration = Duration::from_secs(1);

/// Sends the manifests at `path`, now and after every change of their files.
///
/// A thread polls the files and ends when the receiver is dropped. If a later load fails, the
/// failure is logged and the last objects stay in use.
///
/// # Errors
/// When the manifests cannot be loaded now.
pub(crate) fn manifests(
    path: PathBuf,
    options: manifests::Options,
    listener: SyncSender<Message>,
) -> Result<JoinHandle<()>, manifests::Error> {
    // Read before the files themselves, so that a change during the load causes another load.
    let mut seen = FileStamps::of(&path);
    let mut loaded = Some(manifests::load(&path, &options)?);
    Ok(std::thread::spawn(move || {
        loop {
            if let Some(loaded) = loaded.take()
                && listener.send(Message::Manifests(loaded)).is_err()
            {
                return;
            }
            std::thread::sleep(POLL);
            let now = FileStamps::of(&path);
            if now != seen {
                seen = now;
                match manifests::load(&path, &options) {
                    Ok(new) => loaded = Some(new),
                    Err(error) => {
                        tracing::error!("{error}; the last readable manifests stay in use")
                    }
                }
            }
        }
    }))
}

/// The metadata of manifest files: cheap to read, different after every change.
///
/// Polling works where change notifications do not: on network file systems, on the host file system
/// of a lab kernel, and for ConfigMap mounts, which swap a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamps(BTreeMap<PathBuf, Option<(u64, SystemTime)>>);

impl FileStamps {
    /// Reads the metadata of `path` and, if it is a directory, of every entry in it.
    pub(crate) fn of(path: &Path) -> Self {
        let mut files = BTreeMap::from([(path.to_owned(), metadata(path))]);
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            files.insert(entry.path(), metadata(&entry.path()));
        }
        Self(files)
    }
}

/// Returns the size and modification time of the file `path`; `None` if they cannot be read.
///
/// It follows symbolic links: swapping a link to another file changes the result.
fn metadata(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_changed_and_removed_files_change_the_stamps() {
        let directory = tempfile::tempdir().unwrap();
        let look = || FileStamps::of(directory.path());
        let empty = look();
        let file = directory.path().join("a.yaml");
        std::fs::write(&file, "a").unwrap();
        let one = look();
        assert_ne!(empty, one);
        std::fs::write(&file, "ab").unwrap();
        assert_ne!(one, look());
        assert_eq!(FileStamps::of(&file), FileStamps::of(&file));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(look().0.len(), 1);
    }
}
