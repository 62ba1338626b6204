//! Each type of `proxier` has a name of its own.

use std::collections::BTreeMap;

use super::{assert_none, sources};

/// Names that several modules may use: the error of a module, and the flags of a command.
const SHARED: [&str; 2] = ["Error", "Flags"];

/// Returns the name of the type that `line` declares.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = ["pub(crate) ", "pub(super) ", "pub "]
        .iter()
        .find_map(|visibility| line.strip_prefix(visibility))
        .unwrap_or(line);
    let name = ["struct ", "enum ", "trait "]
        .iter()
        .find_map(|keyword| line.strip_prefix(keyword))?;
    name.split(|next: char| !next.is_alphanumeric()).next()
}

#[test]
fn no_two_types_have_one_name() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources() {
        if !source.path.starts_with("proxier/src/") || source.path.contains("/tests") {
            continue;
        }
        let code = source.text.split("#[cfg(test)]\nmod tests {").next();
        for name in code.unwrap().lines().filter_map(declared) {
            let paths = files.entry(name.to_owned()).or_default();
            paths.push(source.path.clone());
        }
    }
    assert!(files.len() > 100, "{files:?}");
    let shared = |name: &String| SHARED.contains(&name.as_str());
    let faults = files
        .into_iter()
        .filter(|(name, paths)| paths.len() > 1 && !shared(name))
        .map(|(name, paths)| format!("{name} is declared in {}", paths.join(" and in ")));
    assert_none(&faults.collect::<Vec<_>>());
}
