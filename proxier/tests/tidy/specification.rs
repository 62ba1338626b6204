//! The commands in the tables of SPECIFICATION.md.
//!
//! A row is `| promise | figure | command |`, with each command in backticks. The test checks that
//! every command names a script, crate, target, test or subcommand that exists. It runs none.

use std::path::{Path, PathBuf};

use super::{assert_none, repository};

/// A row of a table: its line number and the commands in its last column.
struct Row<'a> {
    number: usize,
    commands: Vec<&'a str>,
}

/// Returns the rows of all tables, without heads and separators.
fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let is_separator =
            |line: &str| line.starts_with('|') && line.chars().all(|next| "|-: ".contains(next));
        let is_head = lines.peek().is_some_and(|(_, next)| is_separator(next));
        if !line.starts_with('|') || is_separator(line) || is_head {
            continue;
        }
        let cells = line.trim_end().trim_end_matches('|');
        let last = cells.rsplit_once('|').map_or(cells, |(_, last)| last);
        rows.push(Row {
            number: index + 1,
            commands: last.split('`').skip(1).step_by(2).collect(),
        });
    }
    rows
}

/// Returns why a command cannot be run, if it cannot.
pub(super) fn fault(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    // Environment variables come first.
    let is_setting = |word: &&&str| word.contains('=') && !word.starts_with('-');
    let settings = words.iter().take_while(is_setting).count();
    match &words[settings..] {
        ["cargo", "test", rest @ ..] => cargo_test(rest),
        ["cargo", "bench", rest @ ..] => cargo_test(rest),
        ["cargo", "run", rest @ ..] => cargo_run(rest),
        [
            "cargo",
            "clippy" | "doc" | "build" | "check" | "fmt" | "deny",
            ..,
        ] => None,
        [script, ..] if script.starts_with("./") => {
            let exists = repository().join(script).is_file();
            (!exists).then(|| format!("there is no script {script}"))
        }
        _ => Some("the command is neither cargo's nor a script `./..`".to_owned()),
    }
}

/// The words of a cargo command.
#[derive(Default)]
struct Words<'a> {
    package: Option<&'a str>,
    /// The folder and the name of each target.
    targets: Vec<(&'static str, &'a str)>,
    filters: Vec<&'a str>,
}

fn words<'a>(words: &[&'a str]) -> Words<'a> {
    let mut read = Words::default();
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "-p" | "--package" => read.package = words.next(),
            "--test" => read
                .targets
                .extend(words.next().map(|name| ("tests", name))),
            "--bench" => read
                .targets
                .extend(words.next().map(|name| ("benches", name))),
            "--example" => read
                .targets
                .extend(words.next().map(|name| ("examples", name))),
            "--" => {}
            option if option.starts_with('-') => {}
            filter => read.filters.push(filter),
        }
    }
    read
}

fn directory(package: Option<&str>) -> Result<PathBuf, String> {
    let package = package.ok_or("the command names no package with -p")?;
    let directory = match package {
        "lab" => "bench/lab",
        "api-server" => "proxier/tests/api_server",
        "net" => "proxier/net",
        "nftables" => "proxier/nftables",
        "relay" => "proxier/relay",
        "ipvs-netlink-socket" => "ipvs-netlink/netlink",
        name => name,
    };
    let directory = repository().join(directory);
    match directory.join("Cargo.toml").is_file() {
        true => Ok(directory),
        false => Err(format!("there is no package {package}")),
    }
}

fn cargo_test(arguments: &[&str]) -> Option<String> {
    let words = words(arguments);
    if words.package.is_none() && arguments.contains(&"--workspace") {
        return None;
    }
    let directory = match directory(words.package) {
        Ok(directory) => directory,
        Err(fault) => return Some(fault),
    };
    let mut texts = Vec::new();
    if words.targets.is_empty() {
        read(&directory, &mut texts);
    }
    for (folder, name) in words.targets {
        let file = directory.join(folder).join(format!("{name}.rs"));
        let folder = file.with_extension("");
        if !file.is_file() && !folder.join("main.rs").is_file() {
            return Some(format!("there is no target {name}"));
        }
        read(&file, &mut texts);
        read(&folder, &mut texts);
    }
    let has_test = |filter: &&str| {
        let name = filter.rsplit("::").next().unwrap();
        texts.iter().any(|text| declares(text, name))
    };
    let filter = words.filters.into_iter().find(|filter| !has_test(filter))?;
    Some(format!("there is no test {filter}"))
}

/// Adds the text of a Rust file, or of all in a folder.
fn read(path: &Path, texts: &mut Vec<String>) {
    if path.is_dir() {
        let mut paths = Vec::new();
        super::collect(path, &mut paths);
        texts.extend(
            paths
                .iter()
                .map(|path| std::fs::read_to_string(path).unwrap()),
        );
    } else if path.is_file() {
        texts.push(std::fs::read_to_string(path).unwrap());
    }
}

/// Returns whether a function or module of the text has `part` in its name, as test filters match.
fn declares(text: &str, part: &str) -> bool {
    let mut words = text.split(|next: char| !(next.is_alphanumeric() || next == '_'));
    let mut is_name = false;
    words.any(|word| {
        let found = is_name && word.contains(part);
        is_name = word == "fn" || word == "mod";
        found
    })
}

fn cargo_run(arguments: &[&str]) -> Option<String> {
    let (own, rest) = match arguments.iter().position(|word| *word == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    let words = words(own);
    let directory = match directory(words.package) {
        Ok(directory) => directory,
        Err(fault) => return Some(fault),
    };
    if let Some((folder, name)) = words.targets.first() {
        let folder = directory.join(folder);
        let is_file = folder.join(format!("{name}.rs")).is_file();
        return (!is_file).then(|| format!("there is no example {name}"));
    }
    let main = std::fs::read_to_string(directory.join("src/main.rs")).unwrap_or_default();
    if words.package != Some("bench") {
        return main
            .is_empty()
            .then(|| "the package has no program".to_owned());
    }
    let Some(subcommand) = rest.first() else {
        return Some("the command names no subcommand of bench".to_owned());
    };
    let has = main.contains(&format!("Command::{}", pascal(subcommand)));
    (!has).then(|| format!("bench has no subcommand {subcommand}"))
}

/// Returns the name of the variant that clap calls `word`.
fn pascal(word: &str) -> String {
    let part = |part: &str| part[..1].to_uppercase() + &part[1..];
    word.split('-').map(part).collect()
}

/// Returns the faults of all commands of the text.
fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for Row { number, commands } in rows(text) {
        let at = format!("SPECIFICATION.md:{number}");
        if commands.is_empty() {
            faults.push(format!("{at}: the last column has no command in backticks"));
        }
        let found = commands.into_iter().filter_map(|command| {
            let fault = fault(command)?;
            Some(format!("{at}: `{command}`: {fault}"))
        });
        faults.extend(found);
    }
    faults
}

#[test]
fn every_promise_names_a_command_that_exists() {
    let text = std::fs::read_to_string(repository().join("SPECIFICATION.md"))
        .expect("the repository has SPECIFICATION.md");
    assert!(!rows(&text).is_empty(), "SPECIFICATION.md has no table");
    assert_none(&faults(&text));
}

#[test]
fn commands_that_exist_are_accepted() {
    let text = "
| Promise | Figure | Command |
|---|---|:-:|
| No lint is allowed. | - | `cargo test -p proxier --test tidy no_lint_is` |
| A helper of the same name. | - | `cargo test -p proxier tidy::attributes::no_lint_is` |
| Time per pick. | 5 ns | `cargo bench -p schedulers --bench pick` |
| Time per Op. | 1 us | `LAB_REQUIRED=1 cargo run --release -p bench -- netlink --quick` |
| Two targets. | - | `cargo test -p proxier --test plan --test tidy no_lint_is` |
| Everything. | - | `./check`, or `cargo test --workspace` |
";
    assert_eq!(rows(text).len(), 6);
    assert_none(&faults(text));
}

#[test]
fn commands_that_do_not_exist_are_rejected() {
    for (cell, expected) in [
        ("by hand", "the last column has no command in backticks"),
        (
            "`make`",
            "`make`: the command is neither cargo's nor a script `./..`",
        ),
        ("`./no`", "`./no`: there is no script ./no"),
        (
            "`cargo test -p no`",
            "`cargo test -p no`: there is no package no",
        ),
        (
            "`cargo test -p proxier --test no`",
            "`cargo test -p proxier --test no`: there is no target no",
        ),
        (
            "`cargo test -p proxier --test tidy absent`",
            "`cargo test -p proxier --test tidy absent`: there is no test absent",
        ),
        (
            "`cargo run -p bench -- no`",
            "`cargo run -p bench -- no`: bench has no subcommand no",
        ),
    ] {
        let row = format!("| a | b | {cell} |\n");
        assert_eq!(faults(&row), [format!("SPECIFICATION.md:1: {expected}")]);
    }
}
