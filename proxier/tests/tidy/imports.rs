//! The allowed imports between the modules of `proxier`.

use std::collections::BTreeSet;

use super::{Source, assert_none, sources};

/// Every module, and the modules it may use.
///
/// A module may use only modules above it, so there are no cycles. `testing` and `lib.rs` may use
/// all of them.
const MODULES: [(&str, &[&str]); 47] = [
    // Values. They know neither the API server nor the kernel.
    ("model", &[]),
    ("clock", &[]),
    ("conditions", &[]),
    ("joined", &[]),
    ("namespace_lock", &[]),
    ("one_line", &[]),
    ("packed", &[]),
    ("panics", &[]),
    ("problem", &[]),
    ("split_map", &["packed"]),
    ("timer", &[]),
    ("yaml", &[]),
    ("health", &[]),
    ("frontend", &["model"]),
    ("relay", &["model"]),
    ("definition", &[]),
    ("destinations", &[]),
    ("marks", &["model"]),
    ("op", &["definition", "destinations"]),
    (
        "observed",
        &["definition", "destinations", "op", "split_map"],
    ),
    ("instruments", &["model"]),
    // Input.
    ("store", &["model", "packed", "problem"]),
    ("api", &["model", "problem", "store"]),
    ("events", &["model", "problem"]),
    (
        "watch",
        &[
            "api",
            "clock",
            "conditions",
            "events",
            "model",
            "problem",
            "store",
            "yaml",
        ],
    ),
    ("manifests", &["api", "model", "problem", "store", "yaml"]),
    // Decisions: pure.
    (
        "plan",
        &[
            "definition",
            "destinations",
            "frontend",
            "marks",
            "model",
            "problem",
            "split_map",
            "store",
        ],
    ),
    ("retry", &["op", "plan", "timer"]),
    ("traffic", &["instruments", "model", "plan", "split_map"]),
    // The kernel.
    ("sysctl", &[]),
    ("nftables", &[]),
    ("ipset", &[]),
    ("predecessor", &["ipset", "model", "nftables"]),
    (
        "conntrack",
        &["frontend", "model", "observed", "op", "plan"],
    ),
    (
        "filter",
        &[
            "frontend", "model", "nftables", "observed", "packed", "plan", "problem",
        ],
    ),
    // `filter` for the name of the table that the monitor watches.
    (
        "dataplane",
        &[
            "clock",
            "conditions",
            "conntrack",
            "definition",
            "filter",
            "frontend",
            "marks",
            "model",
            "namespace_lock",
            "nftables",
            "observed",
            "op",
            "plan",
            "problem",
            "relay",
            "split_map",
            "timer",
        ],
    ),
    // `dataplane` for `Failure`, which a round returns for the file too.
    (
        "ledger",
        &[
            "clock",
            "conditions",
            "dataplane",
            "filter",
            "frontend",
            "joined",
            "marks",
            "model",
            "observed",
            "plan",
            "split_map",
            "timer",
        ],
    ),
    // `ledger` for the drains: a draining destination is not deleted.
    ("diff", &["joined", "ledger", "observed", "op", "plan"]),
    ("neighbours", &["nftables", "observed", "op", "plan"]),
    // A comparison of the kernel with the plan, and its output.
    (
        "shadow",
        &[
            "definition",
            "frontend",
            "ledger",
            "model",
            "observed",
            "op",
            "plan",
            "store",
        ],
    ),
    (
        "report",
        &[
            "dataplane",
            "destinations",
            "ledger",
            "observed",
            "op",
            "plan",
            "problem",
            "shadow",
            "split_map",
        ],
    ),
    // The operator's choices. It converts them to the types of the modules that use them.
    (
        "config",
        &["filter", "model", "plan", "sysctl", "watch", "yaml"],
    ),
    // The HTTP servers.
    (
        "serve",
        &[
            "clock",
            "dataplane",
            "events",
            "health",
            "instruments",
            "model",
            "plan",
            "traffic",
            "watch",
        ],
    ),
    // Rounds, and the loop around them.
    (
        "sync",
        &[
            "conntrack",
            "dataplane",
            "diff",
            "filter",
            "frontend",
            "joined",
            "ledger",
            "marks",
            "model",
            "observed",
            "op",
            "plan",
            "problem",
            "retry",
            "split_map",
            "store",
            "timer",
        ],
    ),
    (
        "daemon",
        &[
            "clock",
            "conditions",
            "conntrack",
            "dataplane",
            "events",
            "filter",
            "health",
            "instruments",
            "manifests",
            "model",
            "nftables",
            "op",
            "plan",
            "predecessor",
            "problem",
            "report",
            "serve",
            "store",
            "sync",
            "sysctl",
            "timer",
            "traffic",
            "watch",
        ],
    ),
    ("follow", &["clock", "conditions", "daemon", "manifests"]),
    (
        "cli",
        &[
            "clock",
            "config",
            "daemon",
            "dataplane",
            "events",
            "filter",
            "follow",
            "health",
            "instruments",
            "ledger",
            "manifests",
            "model",
            "namespace_lock",
            "neighbours",
            "nftables",
            "observed",
            "one_line",
            "op",
            "plan",
            "predecessor",
            "relay",
            "report",
            "serve",
            "shadow",
            "sync",
            "sysctl",
            "traffic",
            "watch",
        ],
    ),
];

/// Paths of other crates, and the only modules that may use them.
const RESERVED: [(&str, &[&str]); 12] = [
    // The API server.
    ("kube", &["watch"]),
    ("k8s_openapi", &["watch"]),
    ("hyper", &["serve", "watch"]),
    ("hyper_rustls", &["watch"]),
    ("hyper_util", &["serve", "watch"]),
    ("tokio", &["serve", "watch"]),
    ("tower", &["watch"]),
    ("rustls", &["watch"]),
    // Files and flags.
    ("serde_saphyr", &["config", "manifests", "yaml"]),
    ("clap", &["cli"]),
    // The kernel.
    (
        "netlink::transport",
        &["conntrack", "dataplane", "ipset", "nftables"],
    ),
    ("ipvs::Client", &["dataplane"]),
];

/// Returns the module of a file of `proxier/src`; `None` for other files and for unit tests.
fn module(source: &Source) -> Option<&str> {
    let path = source.path.strip_prefix("proxier/src/")?;
    let path = path.strip_suffix(".rs")?;
    let is_test = path.split('/').any(|part| part == "tests");
    let name = path.split('/').next()?;
    (!is_test && !["lib", "main", "testing"].contains(&name)).then_some(name)
}

/// Returns the code of a file, without comments and without the unit tests at its end.
fn code(source: &Source) -> String {
    let text = &source.text;
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the text after each occurrence of `path`, unless it is part of a longer word.
fn uses<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices(path).filter_map(move |(at, _)| {
        let (before, rest) = (&code[..at], &code[at + path.len()..]);
        let is_whole = !before.ends_with(is_word) && !rest.starts_with(is_word);
        is_whole.then_some(rest)
    })
}

/// Returns the modules that the code names: `crate::a::..` and `crate::{a::.., b}`.
fn named(code: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for rest in uses(code, "crate") {
        let Some(rest) = rest.strip_prefix("::") else {
            continue;
        };
        let Some(list) = rest.strip_prefix('{') else {
            found.extend(rest.split(|next| !is_word(next)).next());
            continue;
        };
        // Names at the outer level of the braces.
        let mut depth = 0;
        let mut is_first = true;
        for part in list.split_inclusive(['{', '}', ',', ':']) {
            let name = part.trim_end_matches(['{', '}', ',', ':']).trim();
            if depth == 0 && is_first && !name.is_empty() {
                found.insert(name);
            }
            match part.chars().last() {
                Some('{') => depth += 1,
                Some('}') if depth == 0 => break,
                Some('}') => depth -= 1,
                Some(',') if depth == 0 => is_first = true,
                Some(':') if depth == 0 => is_first = false,
                _ => {}
            }
        }
    }
    found
}

#[test]
fn modules_import_listed_modules_only() {
    let mut faults = Vec::new();
    let mut needed = BTreeSet::new();
    for source in &sources() {
        let Some(module) = module(source) else {
            continue;
        };
        let path = &source.path;
        let Some((_, listed)) = MODULES.iter().find(|(name, _)| *name == module) else {
            faults.push(format!("{path}: MODULES does not list {module}"));
            continue;
        };
        let code = code(source);
        for used in named(&code) {
            needed.insert((module.to_owned(), used.to_owned()));
            if used != module && !listed.contains(&used) {
                faults.push(format!("{path}: {module} may not use {used}; see MODULES"));
            }
        }
        // In a file of the top level, `super` is the crate.
        if path.matches('/').count() == 2 && uses(&code, "super").next().is_some() {
            faults.push(format!("{path}: write `crate::` instead of `super::`"));
        }
    }
    for (module, listed) in MODULES {
        for used in listed {
            if !needed.contains(&(module.to_owned(), (*used).to_owned())) {
                faults.push(format!(
                    "{module} does not use {used}; remove it from MODULES"
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn the_table_of_modules_has_no_cycles() {
    let mut above = BTreeSet::new();
    for (module, listed) in MODULES {
        for used in listed {
            assert!(
                above.contains(used),
                "{module} may use {used}, so MODULES must list {used} above {module}"
            );
        }
        above.insert(module);
    }
}

#[test]
fn other_crates_are_used_by_their_modules_only() {
    let mut faults = Vec::new();
    for source in &sources() {
        let Some(module) = module(source) else {
            continue;
        };
        let code = code(source);
        for (path, listed) in RESERVED {
            let is_used =
                uses(&code, path).any(|rest| rest.starts_with(['.', ':', ';', ' ', '>', ',']));
            if is_used && !listed.contains(&module) {
                faults.push(format!(
                    "{}: {module} may not use {path}; see RESERVED",
                    source.path
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn every_form_of_import_is_read() {
    for (code, modules) in [
        ("use crate::a;", &["a"][..]),
        ("use crate::a::{B, c::D};", &["a"]),
        ("use crate::{a, b::{C, D}, e::F};", &["a", "b", "e"]),
        ("let x = crate::a::b(&crate::c::D);", &["a", "c"]),
        ("pub(crate) fn mycrate::a() {}", &[]),
    ] {
        assert_eq!(
            named(code),
            BTreeSet::from_iter(modules.iter().copied()),
            "{code}"
        );
    }
}
