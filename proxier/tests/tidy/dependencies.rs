//! The allowed dependencies of each crate.

use super::{CRATES, assert_none, repository};

/// The dependencies of the crates that other projects may use.
const DEPENDENCIES: [(&str, &[&str]); 3] = [
    // Schedulers are pure: no clock, no input or output, no randomness.
    ("schedulers", &[]),
    // Blocking system calls only; no Kubernetes and no async runtime.
    ("ipvs-netlink", &["netlink", "rustix", "thiserror"]),
    (
        "ipvs-netlink/netlink",
        &["netlink-packet-core", "netlink-sys", "rustix", "thiserror"],
    ),
];

/// Returns the names in a section of a crate's manifest.
fn section(of: &str, section: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join(of).join("Cargo.toml")).unwrap();
    let header = format!("[{section}]");
    let mut lines = text.lines().skip_while(|line| *line != header).skip(1);
    let lines = lines.by_ref().take_while(|line| !line.starts_with('['));
    let entries = lines.filter(|line| line.contains('=') && !line.starts_with('#'));
    let name = |line: &str| line.split(['.', ' ', '=']).next().unwrap().to_owned();
    entries.map(name).collect()
}

#[test]
fn public_crates_depend_on_listed_crates_only() {
    let mut faults = Vec::new();
    for (of, listed) in DEPENDENCIES {
        for name in section(of, "dependencies") {
            if !listed.contains(&name.as_str()) {
                faults.push(format!(
                    "{of}/Cargo.toml: {of} may not depend on {name}; see DEPENDENCIES"
                ));
            }
        }
    }
    assert_none(&faults);
    assert!(!section("ipvs-netlink", "dependencies").is_empty());
}

#[test]
fn no_crate_depends_on_bench() {
    let mut faults = Vec::new();
    for of in CRATES {
        for part in ["dependencies", "dev-dependencies"] {
            if section(of, part).iter().any(|name| name == "bench") {
                faults.push(format!(
                    "{of}/Cargo.toml: [{part}] has bench, which may use every crate"
                ));
            }
        }
    }
    assert_none(&faults);
}
