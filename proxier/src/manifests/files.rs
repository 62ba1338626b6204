//! Finds and reads the files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Error;

/// The largest file that is read, in bytes: enough for 100,000 Services with their endpoints.
const MAX_BYTES: u64 = 256 << 20;

/// A file with its content, or why it is unreadable.
pub(super) struct ManifestFile {
    pub(super) path: PathBuf,
    pub(super) text: Result<String, String>,
}

/// Returns the files of `path` in the order of their names.
///
/// The iterator reads a file when it returns it, so that not all contents are in memory at once.
pub(super) fn find(path: &Path) -> Result<impl Iterator<Item = ManifestFile>, Error> {
    let unreadable = |source| Error::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    if fs::metadata(path).map_err(unreadable)?.is_dir() {
        for entry in fs::read_dir(path).map_err(unreadable)? {
            let candidate = entry.map_err(unreadable)?.path();
            if is_manifest(&candidate) {
                paths.push(candidate);
            }
        }
        if paths.is_empty() {
            return Err(Error::NoManifests {
                path: path.to_owned(),
            });
        }
        paths.sort();
    } else {
        // If `path` itself is unreadable, loading fails, so the file is opened here already. A pipe
        // is not: opening it twice would lose its content.
        if fs::metadata(path).map_err(unreadable)?.is_file() {
            File::open(path).map_err(unreadable)?;
        }
        paths.push(path.to_owned());
    }
    Ok(paths.into_iter().map(|path| ManifestFile {
        text: read(&path),
        path,
    }))
}

/// Returns whether an entry of a directory is a manifest, by its name and type.
///
/// A dangling link is a manifest, so that reading it reports a problem.
fn is_manifest(path: &Path) -> bool {
    let is_hidden = path
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) && !path.is_dir()
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let is_regular = file.metadata()?.is_file();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(is_regular)
    });
    match read {
        Err(error) => Err(lower(&error)),
        Ok(_) if bytes.len() as u64 > MAX_BYTES => {
            Err(format!("larger than {} MiB", MAX_BYTES >> 20))
        }
        // A program that replaces a file in place empties it first; that of `kubectl get ... > FILE` is empty for
        // seconds.
        Ok(true) if bytes.trim_ascii().is_empty() => {
            Err("empty, without even a comment".to_owned())
        }
        Ok(_) => String::from_utf8(bytes)
            .map_err(|error| format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to())),
    }
}

fn lower(error: &io::Error) -> String {
    error.to_string().to_lowercase()
}
