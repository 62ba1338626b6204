//! Follows manifest files.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::Level;

use crate::sources::manifests::{self, Allocated, Loaded};
use crate::sources::message::Message;
use crate::util::clock;
use crate::util::conditions::{Coverage, LastingConditions};

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
    let (mut seen, mut first, mut is_at_rest) = (look(), load(), true);
    if look() != seen {
        (seen, first, is_at_rest) = at_rest(look, load, || std::thread::sleep(REST));
    }
    let mut first = first?;
    let mut followed = Followed {
        seen,
        is_at_rest,
        allocated: std::mem::take(&mut first.allocated),
        failure: None,
        conditions: LastingConditions::default(),
    };
    Ok(std::thread::spawn(move || {
        let look = || FileStamps::of(&path);
        let load = |allocated: &Allocated| manifests::reload(&path, &options, allocated);
        let mut loaded = Some(first);
        loop {
            if let Some(loaded) = loaded.take()
                && listener.send(Message::Manifests(loaded)).is_err()
            {
                return;
            }
            std::thread::sleep(POLL);
            loaded = followed.poll(look, load, || std::thread::sleep(REST));
            followed.log(&path, clock::since_boot());
        }
    }))
}

/// What is known of the files.
struct Followed {
    seen: FileStamps,
    /// Whether the last load was of files at rest.
    is_at_rest: bool,
    /// What Services of the last load keep.
    allocated: Allocated,
    /// Why the files cannot be loaded now.
    failure: Option<String>,
    conditions: LastingConditions,
}

impl Followed {
    /// Loads the files if they changed. Returns the manifests if that succeeded.
    fn poll(
        &mut self,
        look: impl Fn() -> FileStamps,
        load: impl Fn(&Allocated) -> Result<Loaded, manifests::Error>,
        rest: impl Fn(),
    ) -> Option<Loaded> {
        if look() == self.seen {
            self.is_at_rest = true;
            return None;
        }
        let loaded;
        (self.seen, loaded, self.is_at_rest) = at_rest(look, || load(&self.allocated), rest);
        self.failure = None;
        match loaded {
            Ok(mut loaded) => {
                self.allocated = std::mem::take(&mut loaded.allocated);
                Some(loaded)
            }
            Err(error) => {
                self.failure = Some(format!("{:#}", anyhow::Error::new(error)));
                None
            }
        }
    }

    /// Logs the failures that last, at `now`.
    fn log(&mut self, path: &Path, now: Duration) {
        let mut report = self.conditions.report(Coverage::All, now);
        if !self.is_at_rest {
            let text = format_args!(
                "{}: the manifests never stop changing; they are read as they are",
                path.display()
            );
            report.add(Level::WARN, "manifests that never stop changing", text);
        }
        if let Some(failure) = &self.failure {
            let text = format_args!("{failure}; the last readable manifests stay in use");
            report.add(Level::ERROR, "failures to read manifests", text);
        }
        report.write();
    }
}

/// Loads files at rest: two looks with a `rest` between them see the same, and one after the load, too. Returns
/// also what they see, and whether the files were at rest.
fn at_rest<T>(
    look: impl Fn() -> FileStamps,
    load: impl Fn() -> T,
    rest: impl Fn(),
) -> (FileStamps, T, bool) {
    let mut seen = look();
    for _ in 0..MOST_LOOKS {
        let before = seen;
        rest();
        seen = look();
        if seen == before {
            let loaded = load();
            seen = look();
            if seen == before {
                return (seen, loaded, true);
            }
        }
    }
    (seen, load(), false)
}

/// The metadata of manifest files: cheap to read, different after every change.
///
/// Polling works where change notifications do not: on network file systems, on the host file system
/// of a lab kernel, and for ConfigMap mounts, which swap a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamps(BTreeMap<PathBuf, Option<Stamp>>);

impl FileStamps {
    /// Reads the metadata of `path` and, if it is a directory, of every manifest in it.
    pub(crate) fn of(path: &Path) -> Self {
        let mut files = BTreeMap::from([(path.to_owned(), Stamp::of(path))]);
        let manifests = manifests::paths(path).unwrap_or_default();
        files.extend(manifests.into_iter().map(|file| {
            let stamp = Stamp::of(&file);
            (file, stamp)
        }));
        Self(files)
    }
}

/// What tells one state of a file from another.
///
/// Size and modification time are not enough: archives and images with reproducible content give all files one
/// time, so a link that is swapped between two of them changes only the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    /// Size, modification and change time of a file, the times in seconds and nanoseconds; `None` of a directory,
    /// whose times change with files that are no manifests.
    content: Option<(u64, [i64; 4])>,
}

impl Stamp {
    /// Returns the stamp of `path`; `None` if it cannot be read, and for pipes and devices, whose content can be
    /// read once.
    ///
    /// It follows symbolic links: swapping a link to another file changes the result.
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        if !metadata.is_file() && !metadata.is_dir() {
            return None;
        }
        let times = [
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ];
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            content: metadata.is_file().then_some((metadata.len(), times)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use rustix::fs::{FileType, Mode};

    use super::*;

    fn stamps(size: u8) -> FileStamps {
        let stamp = Stamp {
            device: 0,
            inode: 0,
            content: Some((size.into(), [0; 4])),
        };
        FileStamps(BTreeMap::from([("a.yaml".into(), Some(stamp))]))
    }

    /// Loads while the looks see the letters of `sizes` one after the other, and the last one for ever. Returns
    /// after how many looks the load began whose result counts, and the number of loads and of rests.
    fn load_while_looks_see(sizes: &str) -> (usize, usize, usize) {
        let (looks, loads, rests) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let add_one = |count: &Cell<usize>| count.set(count.get() + 1);
        let look = || {
            let nth = looks.get().min(sizes.len() - 1);
            add_one(&looks);
            stamps(sizes.as_bytes()[nth])
        };
        let load = || {
            add_one(&loads);
            looks.get()
        };
        let (seen, began, is_at_rest) = at_rest(look, load, || add_one(&rests));
        assert_eq!(seen, look(), "what was seen last is what was loaded");
        assert_eq!(is_at_rest, rests.get() < MOST_LOOKS);
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
    fn files_that_never_stop_changing_are_a_condition() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), "# none\n").unwrap();
        let options = manifests::Options {
            service_cidr: Vec::new(),
            node_name: "node-a".into(),
            permits_loopback: false,
        };
        let mut followed = Followed {
            seen: stamps(0),
            is_at_rest: true,
            allocated: Allocated::default(),
            failure: None,
            conditions: LastingConditions::default(),
        };
        let changes = Cell::new(0_u8);
        let mut poll = |step, now| {
            let look = || {
                changes.set(changes.get().wrapping_add(step));
                stamps(changes.get())
            };
            let load =
                |allocated: &Allocated| manifests::reload(directory.path(), &options, allocated);
            let loaded = followed.poll(look, load, || {});
            followed.log(directory.path(), Duration::from_secs(now));
            (loaded.is_some(), followed.conditions.is_lasting())
        };
        for now in 0..3 {
            assert_eq!(poll(1, now), (true, true), "poll {now}");
        }
        assert_eq!(poll(0, 3), (false, false));
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
    fn a_file_of_the_same_size_and_time_changes_the_stamps() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (version, content) in [("v1", "a"), ("v2", "b")] {
            std::fs::create_dir(at(version)).unwrap();
            let path = at(version).join("a.yaml");
            std::fs::write(&path, content).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            let version = File::open(at(version)).unwrap();
            version.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        symlink("v1", at("current")).unwrap();
        symlink("v1/a.yaml", at("link.yaml")).unwrap();
        let look = || {
            (
                FileStamps::of(&at("current")),
                FileStamps::of(&at("link.yaml")),
            )
        };
        let before = look();
        for (target, link) in [("v2", "current"), ("v2/a.yaml", "link.yaml")] {
            symlink(target, at("new")).unwrap();
            std::fs::rename(at("new"), at(link)).unwrap();
        }
        let after = look();
        assert_ne!(before.0, after.0, "a linked directory");
        assert_ne!(before.1, after.1, "a linked file");
    }

    #[test]
    fn files_that_are_no_manifests_do_not_change_the_stamps() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.yaml"), "a").unwrap();
        let look = || FileStamps::of(directory.path());
        let before = look();
        let log = directory.path().join("app.log");
        std::fs::write(&log, "a").unwrap();
        assert_eq!(look(), before);
        std::fs::write(&log, "ab").unwrap();
        std::fs::write(directory.path().join(".a.yaml.swp"), "a").unwrap();
        assert_eq!(look(), before);
        std::fs::remove_file(&log).unwrap();
        assert_eq!(look(), before);
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
