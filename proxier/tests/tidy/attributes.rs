//! Attributes that silence a lint or skip a test.

use super::{Source, assert_none, sources};

/// Files with `#[ignore]`, the number of them, and why.
const IGNORED_TESTS: [(&str, usize, &str); 2] = [
    (
        "bench/lab/tests/ending.rs",
        1,
        "a fixture that another test starts",
    ),
    (
        "bench/lab/tests/outcomes.rs",
        7,
        "fixtures that another test starts",
    ),
];

/// Returns how many attributes of a file contain `word`. Finds those that begin a line.
fn count(source: &Source, word: &str) -> usize {
    let mut count = 0;
    let mut is_open = false;
    for line in source.text.lines().map(str::trim) {
        is_open |= line.starts_with("#[") || line.starts_with("#![");
        count += usize::from(is_open && line.contains(word));
        is_open &= !line.ends_with(']');
    }
    count
}

#[test]
fn no_lint_is_allowed() {
    let sources = sources();
    let allowing = sources.iter().filter(|source| count(source, "allow(") > 0);
    let fault = |source: &Source| {
        format!(
            "{} has `allow(`; write `#[expect(.., reason = \"..\")]`",
            source.path
        )
    };
    assert_none(&allowing.map(fault).collect::<Vec<_>>());
}

#[test]
fn every_ignored_test_is_listed() {
    let mut faults = Vec::new();
    for source in sources() {
        let found = count(&source, "#[ignore");
        let listed = IGNORED_TESTS.iter().find(|(path, ..)| *path == source.path);
        let expected = listed.map_or(0, |&(_, number, _)| number);
        if found != expected {
            faults.push(format!(
                "{} has {found} ignored tests; IGNORED_TESTS lists {expected}",
                source.path
            ));
        }
    }
    assert_none(&faults);
}

#[test]
fn attributes_of_several_lines_are_found() {
    let source = Source {
        path: "a.rs".to_owned(),
        text: "#![cfg_attr(\n    test,\n    allow(dead_code)\n)]\n// allow(this)\n".to_owned(),
    };
    assert_eq!(count(&source, "allow("), 1);
}
