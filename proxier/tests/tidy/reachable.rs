//! Files that no crate compiles.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{CRATES, assert_none, relative, repository, sources};

/// Folders of crate roots: each file in them is one, and so is the `main.rs` of each subfolder.
const TARGETS: [&str; 5] = ["tests", "benches", "examples", "src/bin", "fuzz_targets"];

fn roots() -> Vec<PathBuf> {
    let mut roots = Vec::new();
    for of in CRATES {
        let directory = repository().join(of);
        roots.extend(["src/lib.rs", "src/main.rs", "build.rs"].map(|file| directory.join(file)));
        for folder in TARGETS {
            let Ok(entries) = std::fs::read_dir(directory.join(folder)) else {
                continue;
            };
            for entry in entries {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => roots.push(path.join("main.rs")),
                    false => roots.push(path),
                }
            }
        }
    }
    roots.retain(|path| path.is_file() && path.extension().is_some_and(|end| end == "rs"));
    roots
}

/// Returns the module that a line declares without a body.
fn declared(line: &str) -> Option<&str> {
    let (before, rest) = line.strip_suffix(';')?.rsplit_once("mod ")?;
    let is_visibility = before.is_empty() || before.starts_with("pub");
    is_visibility.then_some(rest)
}

/// Adds `file` and the files of its modules to `reached`.
///
/// The modules of a root, of a `mod.rs` and of a file named by `#[path]` are beside it; those of
/// another file are in the folder with its name.
fn follow(file: &Path, are_modules_beside: bool, reached: &mut BTreeSet<String>) {
    if !reached.insert(relative(file)) {
        return;
    }
    let parent = file.parent().unwrap();
    let folder = match are_modules_beside {
        true => parent.to_owned(),
        false => file.with_extension(""),
    };
    let text = std::fs::read_to_string(file).unwrap();
    let mut named = None;
    // The module around the declarations. Formatted code closes it with a brace in the first column.
    let mut outer = folder.clone();
    for line in text.lines() {
        if let Some(module) = line
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            outer.push(module);
        } else if line.starts_with('}') {
            outer.clone_from(&folder);
        }
        let line = line.trim();
        if let Some(path) = line.strip_prefix("#[path = \"") {
            named = path.strip_suffix("\"]");
        }
        let Some(module) = declared(line) else {
            continue;
        };
        let beside = outer.join(format!("{module}.rs"));
        let inside = outer.join(module).join("mod.rs");
        match named.take() {
            Some(path) => follow(&lexical(&parent.join(path)), true, reached),
            None if beside.is_file() => follow(&beside, false, reached),
            None if inside.is_file() => follow(&inside, true, reached),
            None => panic!("{} declares {module}, which has no file", relative(file)),
        }
    }
}

/// Returns the path without `..`.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => _ = plain.pop(),
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn every_file_is_part_of_a_crate() {
    let mut reached = BTreeSet::new();
    for root in roots() {
        follow(&root, true, &mut reached);
    }
    let lost = sources().into_iter().map(|source| source.path);
    let lost = lost.filter(|path| !reached.contains(path));
    let fault = |path| format!("{path} belongs to no crate; declare it with `mod`, or delete it");
    assert_none(&lost.map(fault).collect::<Vec<_>>());
}

#[test]
fn every_package_is_listed() {
    let mut found = BTreeSet::new();
    for source in sources() {
        let mut directory = repository().join(source.path);
        while directory.pop() && directory != repository() {
            if directory.join("Cargo.toml").is_file() {
                found.insert(relative(&directory));
                break;
            }
        }
    }
    assert_eq!(found, CRATES.map(str::to_owned).into());
}
