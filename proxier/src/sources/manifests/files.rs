//! Finds and reads the files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

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
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let paths = paths(path).map_err(unreadable)?;
    if paths.is_empty() {
        return Err(Error::NoManifests {
            path: path.to_owned(),
        });
    }
    // If `path` itself is unreadable, loading fails, so the file is opened here already. A pipe
    // is not: opening it twice would lose its content.
    if metadata.is_file() {
        File::open(path).map_err(unreadable)?;
    }
    let is_directory = metadata.is_dir();
    Ok(paths.into_iter().map(move |path| ManifestFile {
        text: match is_directory {
            true => open_regular(&path),
            false => File::open(&path),
        }
        .map_err(|error| lower(&error))
        .and_then(read),
        path,
    }))
}

/// Returns the manifests of the directory `path` in the order of their names, or `path` itself if it is none.
pub(crate) fn paths(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(path)? {
        let candidate = entry?.path();
        if is_manifest(&candidate) {
            paths.push(candidate);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns whether an entry of a directory is a manifest, by its name and type.
///
/// A dangling link and a pipe are manifests, so that reading them reports a problem.
fn is_manifest(path: &Path) -> bool {
    let is_hidden = path
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !is_hidden && matches!(extension, Some("yaml" | "yml" | "json")) && !path.is_dir()
}

/// Opens a regular file. It never waits, as a pipe makes its reader wait for a writer.
fn open_regular(path: &Path) -> io::Result<File> {
    let irregular = || io::Error::other("not a regular file");
    // Before it is opened, because opening a device may have an effect.
    if !fs::metadata(path)?.is_file() {
        return Err(irregular());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    // Again, because a program may have replaced the file.
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(irregular()),
    }
}

fn read(file: File) -> Result<String, String> {
    let mut bytes = Vec::new();
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let length = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    length.map_err(|error| lower(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("larger than {} MiB", MAX_BYTES >> 20));
    }
    // A program that replaces a file in place empties it first; that of `kubectl get ... > FILE` is empty for
    // seconds.
    if is_regular && bytes.trim_ascii().is_empty() {
        return Err("empty, without even a comment".to_owned());
    }
    String::from_utf8(bytes)
        .map_err(|error| format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

fn lower(error: &io::Error) -> String {
    error.to_string().to_lowercase()
}
