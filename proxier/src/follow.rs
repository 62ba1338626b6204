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

/// Files whose metadata did not change for this time are at rest: no program writes them.
const REST: Duration = Duration::from_millis(500);

/// How often to look whether changed files are at rest. Then they are loaded as they are.
const MOST_LOOKS: usize = 20;

/// Sends the manifests at `path`, now and after every change of their files.
///
/// A thread polls the files and ends when the receiver is dropped. It loads changed files when they are at rest,
/// because one that is being written may lack objects. If a later load fails, the failure is logged and the last
/// objects stay in use.
///
/// # Errors
/// When the manifests cannot be loaded now.
pub(crate) fn manifests(
    path: PathBuf,
    options: manifests::Options,
    listener: SyncSender<Message>,
) -> Result<JoinHandle<()>, manifests::Error> {
    let look = || FileStamps::of(&path);
    let load = || manifests::load(&path, &options);
    // Without a wait, so that a start takes no longer, unless a program writes the files now.
    let (mut seen, mut first) = (look(), load());
    if look() != seen {
        (seen, first) = at_rest(look, load, || std::thread::sleep(REST));
    }
    let mut loaded = Some(first?);
    Ok(std::thread::spawn(move || {
        let look = || FileStamps::of(&path);
        let load = || manifests::load(&path, &options);
        loop {
            if let Some(loaded) = loaded.take()
                && listener.send(Message::Manifests(loaded)).is_err()
            {
                return;
            }
            std::thread::sleep(POLL);
            if look() != seen {
                let changed;
                (seen, changed) = at_rest(look, load, || std::thread::sleep(REST));
                match changed {
                    Ok(new) => loaded = Some(new),
                    Err(error) => {
                        tracing::error!("{error}; the last readable manifests stay in use")
                    }
                }
            }
        }
    }))
}

/// Loads files at rest: two looks with a `rest` between them see the same, and one after the load, too. Returns
/// also what they see.
fn at_rest<T>(
    look: impl Fn() -> FileStamps,
    load: impl Fn() -> T,
    rest: impl Fn(),
) -> (FileStamps, T) {
    let mut seen = look();
    for _ in 0..MOST_LOOKS {
        let before = seen;
        rest();
        seen = look();
        if seen == before {
            let loaded = load();
            seen = look();
            if seen == before {
                return (seen, loaded);
            }
        }
    }
    tracing::warn!("the manifests never stop changing; they are read as they are");
    (seen, load())
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

/// Returns the size and modification time of the file `path`; `None` if they cannot be read, and for pipes and
/// devices, whose content can be read once.
///
/// It follows symbolic links: swapping a link to another file changes the result.
fn metadata(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() && !metadata.is_dir() {
        return None;
    }
    Some((metadata.len(), metadata.modified().ok()?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::io::Write as _;

    use rustix::fs::{FileType, Mode};

    use super::*;

    /// Loads while the looks see the letters of `sizes` one after the other, and the last one for ever. Returns
    /// after how many looks the load began whose result counts, and the number of loads and of rests.
    fn load_while_looks_see(sizes: &str) -> (usize, usize, usize) {
        let (looks, loads, rests) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let add_one = |count: &Cell<usize>| count.set(count.get() + 1);
        let look = || {
            let nth = looks.get().min(sizes.len() - 1);
            add_one(&looks);
            let stamp = (sizes.as_bytes()[nth].into(), SystemTime::UNIX_EPOCH);
            FileStamps(BTreeMap::from([("a.yaml".into(), Some(stamp))]))
        };
        let load = || {
            add_one(&loads);
            looks.get()
        };
        let (seen, began) = at_rest(look, load, || add_one(&rests));
        assert_eq!(seen, look(), "what was seen last is what was loaded");
        (began, loads.get(), rests.get())
    }

    #[test]
    fn files_are_loaded_at_rest() {
        assert_eq!(load_while_looks_see("a"), (2, 1, 1), "at rest");
        assert_eq!(
            load_while_looks_see("abc"),
            (4, 1, 3),
            "written for two rests"
        );
        assert_eq!(
            load_while_looks_see("aab"),
            (4, 2, 2),
            "changed during the load"
        );
        let alternating = "ab".repeat(MOST_LOOKS);
        let (_, loads, rests) = load_while_looks_see(&alternating[..=MOST_LOOKS]);
        assert_eq!((loads, rests), (1, MOST_LOOKS), "never at rest");
    }

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

    #[test]
    fn a_pipe_is_not_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
        let before = FileStamps::of(&path);
        let modified = || std::fs::metadata(&path).unwrap().modified().unwrap();
        let first = modified();
        // A clock tick later the modification time changes.
        std::thread::sleep(Duration::from_millis(50));
        pipe.write_all(b"#").unwrap();
        assert_ne!(modified(), first);
        assert_eq!(FileStamps::of(&path), before);
    }
}
