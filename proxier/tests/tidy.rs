//! Rules about the source tree that the compiler does not check.
//!
//! Each failure names the file, the fault, and the constant that lists the permitted exceptions.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

#[path = "tidy/attributes.rs"]
mod attributes;
#[path = "tidy/length.rs"]
mod length;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/release.rs"]
mod release;
#[path = "tidy/specification.rs"]
mod specification;

/// Returns the repository's directory.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A Rust file of the repository.
struct Source {
    /// The path relative to the repository.
    path: String,
    text: String,
}

/// Returns every Rust file of the repository, sorted by path.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    collect(repository(), &mut paths);
    paths.sort();
    assert!(paths.len() > 100, "{paths:?}");
    let source = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).unwrap(),
        path: relative(&path),
    };
    paths.into_iter().map(source).collect()
}

fn collect(directory: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            // Build output, and Git's and editors' files.
            if name != "target" && !name.starts_with('.') {
                collect(&path, paths);
            }
        } else if name.ends_with(".rs") {
            paths.push(path);
        }
    }
}

fn relative(path: &Path) -> String {
    let path = path.strip_prefix(repository()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Fails with one line for each of `faults`.
#[track_caller]
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
