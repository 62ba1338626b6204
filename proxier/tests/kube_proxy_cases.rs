//! The test cases of kube-proxy 1.36.2 that concern planning, and cases for annotations.
//!
//! `tests/kube_proxy_cases/*.txt` has the cases, in the notation of `scene.rs`. Their names begin
//! with their number in the inventory of kube-proxy's tests. If the Kubernetes documentation and
//! kube-proxy's IPVS mode differ, the plan follows the documentation, and a comment says so.
//!
//! [`Scene::plan`] plans each state in three ways: incrementally, from scratch, and from scratch
//! after the events in reverse order.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

#[path = "kube_proxy_cases/scene.rs"]
mod scene;

use scene::Scene;

/// Plans the cases of a file. Panics with every difference from the expected plans.
fn play(file: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kube_proxy_cases");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let mut differences = String::new();
    let mut scene = Scene::default();
    let mut name = "";
    let mut is_checked = true;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(next) = line.strip_prefix("case ") {
            assert!(is_checked, "{name}: ends without an expectation");
            (name, scene) = (next, Scene::default());
            continue;
        }
        is_checked = line.starts_with(' ');
        if !is_checked {
            scene.command(line);
            continue;
        }
        let mut expected = vec![line.trim()];
        while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with(' ')) {
            expected.push(line.trim());
        }
        let planned = scene.plan();
        if planned != expected {
            let planned = planned.join("\n    ");
            let line = number + 1;
            writeln!(
                differences,
                "{file}:{line}: {name}: the plan is\n    {planned}"
            )
            .unwrap();
        }
    }
    assert!(is_checked, "{name}: ends without an expectation");
    assert!(differences.is_empty(), "\n{differences}");
}

#[test]
fn frontends() {
    play("frontends.txt");
}

#[test]
fn endpoints() {
    play("endpoints.txt");
}

#[test]
fn topology() {
    play("topology.txt");
}

#[test]
fn changes() {
    play("changes.txt");
}

#[test]
fn annotations() {
    play("annotations.txt");
}

#[test]
fn elsewhere() {
    play("elsewhere.txt");
}

#[test]
fn health() {
    play("health.txt");
}
