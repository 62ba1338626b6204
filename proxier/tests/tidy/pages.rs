//! The commands of the pages that operators read, and their links.
//!
//! A command of ours must be one that the program accepts; the first look, which needs no node and no cluster, is run. A
//! command of the repository must exist. A page with any other one must say that it needs a cluster, or is about
//! building.

use std::path::Path;
use std::process::Command;

use super::{assert_none, repository, specification};

/// The pages with commands.
const PAGES: [&str; 21] = [
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "deploy/README.md",
    "deploy/RELEASE.md",
    "deploy/chart/README.md",
    "deploy/docs/cleanup.md",
    "deploy/docs/distributions.md",
    "deploy/docs/install.md",
    "deploy/docs/migrate.md",
    "deploy/docs/node.md",
    "deploy/docs/support.md",
    "deploy/docs/troubleshooting.md",
    "proxier/README.md",
    "proxier/docs/annotations.md",
    "proxier/docs/configuration.md",
    "proxier/docs/differences.md",
    "proxier/docs/metrics.md",
    "proxier/docs/neighbours.md",
    "schedulers/README.md",
    "ipvs-netlink/README.md",
];

/// First words of commands that need a cluster or its nodes.
const OF_CLUSTERS: [&str; 12] = [
    "kubectl",
    "helm",
    "$WAIT",
    "deploy/pods/clean",
    "curl",
    "until",
    "ctr",
    "kind",
    "export",
    "ours=",
    "here=",
    "WAIT=",
];

/// First words of commands that build, and of those that a shell needs around others.
const OF_BUILDS: [&str; 10] = [
    "apt-get",
    "rustup",
    "buildah",
    "git",
    "deploy/release",
    "mkdir",
    "sudo",
    "{",
    "printf",
    "systemctl",
];

/// Returns the commands of the blocks `sh`, with their line numbers; continued lines are one.
fn commands(page: &str) -> Vec<(usize, String)> {
    let mut commands: Vec<(usize, String)> = Vec::new();
    let (mut is_inside, mut is_continued) = (false, false);
    for (number, line) in (1..).zip(page.lines()) {
        if let Some(language) = line.strip_prefix("```") {
            is_inside = language == "sh";
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default().trim();
        if !is_inside || line.is_empty() || line.starts_with('#') {
            continue;
        }
        let text = line.trim_end_matches('\\').trim();
        match commands.last_mut().filter(|_| is_continued) {
            Some((_, command)) => *command = format!("{command} {text}"),
            None => commands.push((number, text.to_owned())),
        }
        is_continued = line.ends_with(['\\', '|']);
    }
    commands
}

/// Returns why the program does not accept a command, if it does not. `[--flag]` is a flag that may be omitted.
fn own_fault(command: &str) -> Option<String> {
    let words = command.split_whitespace();
    let words: Vec<String> = words
        .map(|word| word.replace(['[', ']'], "").replace("FILE|DIR", "FILE"))
        .collect();
    let parsed = <proxier::Cli as clap::CommandFactory>::command().try_get_matches_from(words);
    parsed
        .err()
        .filter(clap::Error::use_stderr)
        .map(|error| error.to_string())
}

fn fault(page: &str, command: &str) -> Option<String> {
    let first = command.split_whitespace().next().unwrap_or_default();
    let is_one_of = |list: &[&str]| {
        list.iter()
            .any(|word| first == *word || word.ends_with('=') && first.starts_with(word))
    };
    if first == "ipvs-proxier" {
        return own_fault(command);
    }
    if first == "cargo" || first.starts_with("./") {
        return specification::fault(command);
    }
    let says_cluster = page.contains("need the cluster")
        || page.contains("needs a cluster")
        || page.contains("need a cluster");
    match (is_one_of(&OF_CLUSTERS), is_one_of(&OF_BUILDS)) {
        (true, _) if says_cluster => None,
        (true, _) => Some("the page does not say that it needs a cluster".to_owned()),
        (_, true) => None,
        _ => {
            Some("neither a command of this repository, nor one of a cluster or a build".to_owned())
        }
    }
}

#[test]
fn each_command_of_the_pages_is_one_that_exists() {
    let mut faults = Vec::new();
    for path in PAGES {
        let page = std::fs::read_to_string(repository().join(path)).unwrap();
        let inline = page.replace("```", "");
        let tests = inline.split('`').skip(1).step_by(2);
        for test in tests.filter(|span| span.starts_with("cargo test")) {
            faults
                .extend(specification::fault(test).map(|fault| format!("{path}: {test}: {fault}")));
        }
        for (number, command) in commands(&page) {
            if let Some(fault) = fault(&page, &command) {
                faults.push(format!("{path}:{number}: {command}: {fault}"));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn the_first_look_works_as_printed() {
    let folder = tempfile::tempdir().unwrap();
    let base = repository().join("deploy/base");
    for name in ["config.conf", "kubeconfig.conf"] {
        std::fs::copy(base.join(name), folder.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink(repository().join("deploy"), folder.path().join("deploy")).unwrap();
    let (mut faults, mut ran) = (Vec::new(), 0);
    for path in PAGES {
        let page = std::fs::read_to_string(repository().join(path)).unwrap();
        for (number, command) in commands(&page) {
            let is_look = command.contains("--against empty") && !command.contains(" check ")
                || command.contains("--write-config-to=-");
            if !command.starts_with("ipvs-proxier") || !is_look {
                continue;
            }
            let words = command.split_whitespace().skip(1);
            let output = Command::new(env!("CARGO_BIN_EXE_ipvs-proxier"))
                .args(words)
                .current_dir(folder.path())
                .output()
                .unwrap();
            ran += 1;
            // 2: something would change.
            if !matches!(output.status.code(), Some(0 | 2)) || output.stdout.is_empty() {
                faults.push(format!("{path}:{number}: {command}: {output:?}"));
            }
        }
    }
    assert!(ran >= 4, "{ran}");
    assert_none(&faults);
}

/// Returns the name that a heading has in links.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase().replace(' ', "-");
    letters
        .chars()
        .filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter))
        .collect()
}

#[test]
fn each_link_of_the_pages_leads_to_a_file_and_a_heading() {
    let mut faults = Vec::new();
    for path in PAGES {
        let page = std::fs::read_to_string(repository().join(path)).unwrap();
        let folder = repository().join(path).parent().unwrap().to_owned();
        for link in page.split("](").skip(1) {
            let link = link.split([')', ' ']).next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => repository().join(path),
                file => folder.join(Path::new(file)),
            };
            let is_found = match heading {
                "" => target.exists(),
                heading => std::fs::read_to_string(&target).is_ok_and(|text| {
                    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                    headings
                        .map(|line| anchor(line.trim_start_matches('#')))
                        .any(|found| found == heading)
                }),
            };
            if !is_found {
                faults.push(format!("{path}: {link}"));
            }
        }
    }
    assert_none(&faults);
}
