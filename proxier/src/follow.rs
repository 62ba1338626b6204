//! Following manifest files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::daemon::News;
use crate::manifests::{self, Loaded};
use crate::sync::Input;

/// How often the files are looked at.
const POLL: Duration = Duration::from_secs(1);

/// Loads the manifests at `path` and tells their objects, now and whenever the files change, in a
/// thread that ends when nobody listens any more.
///
/// When they cannot be loaded later on, that is logged and the last good ones stay in force.
///
/// # Errors
/// When they cannot be loaded now.
pub fn manifests(
    path: PathBuf,
    options: manifests::Options,
    listener: SyncSender<News>,
) -> Result<JoinHandle<()>, manifests::Error> {
    let mut seen = Fingerprint::of(&path);
    let mut loaded = Some(manifests::load(&path, &options)?);
    Ok(std::thread::spawn(move || {
        loop {
            if let Some(loaded) = loaded.take()
                && listener.send(news(loaded)).is_err()
            {
                return;
            }
            std::thread::sleep(POLL);
            let now = Fingerprint::of(&path);
            if now != seen {
                seen = now;
                match manifests::load(&path, &options) {
                    Ok(new) => loaded = Some(new),
                    Err(error) => tracing::error!("{error}; the last good manifests stay in force"),
                }
            }
        }
    }))
}

fn news(loaded: Loaded) -> News {
    News::Objects {
        input: if loaded.is_whole {
            Input::Whole
        } else {
            Input::Partial
        },
        events: loaded.events,
        problems: loaded.problems,
    }
}

/// What a look at the files' metadata tells: cheap to take, different after every change.
///
/// Polling metadata works where change notifications do not: network file systems, the host file
/// system of a lab kernel, and ConfigMap mounts, which swap a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(BTreeMap<PathBuf, Option<(u64, SystemTime)>>);

impl Fingerprint {
    /// Looks at `path` and, if it is a directory, at everything directly in it.
    pub fn of(path: &Path) -> Self {
        let mut files = BTreeMap::from([(path.to_owned(), look(path))]);
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            files.insert(entry.path(), look(&entry.path()));
        }
        Self(files)
    }
}

/// Size and time of change of what `path` leads to; `None` when that cannot be seen.
fn look(path: &Path) -> Option<(u64, SystemTime)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_new_changed_and_removed_files() {
        let directory = tempfile::tempdir().unwrap();
        let look = || Fingerprint::of(directory.path());
        let empty = look();
        let file = directory.path().join("a.yaml");
        std::fs::write(&file, "a").unwrap();
        let one = look();
        assert_ne!(empty, one);
        std::fs::write(&file, "ab").unwrap();
        assert_ne!(one, look());
        assert_eq!(Fingerprint::of(&file), Fingerprint::of(&file));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(look().0.len(), 1);
    }
}
