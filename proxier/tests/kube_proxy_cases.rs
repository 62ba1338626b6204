//! kube-proxy's own test cases, as far as planning decides them.
//!
//! `tests/kube_proxy_cases/*.txt` hold the cases, named by their place in the inventory of
//! kube-proxy 1.36.2's tests, written anew in a notation of ours; where the Kubernetes documentation
//! wins over kube-proxy's IPVS mode, a comment says so. Annotations, which kube-proxy does not know,
//! have cases of ours. `scene.rs` says what the notation means.
//! Every state is planned in three ways: by an incremental planner that lived through all changes,
//! from scratch, and from scratch after the objects came in the opposite order.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

#[path = "kube_proxy_cases/scene.rs"]
mod scene;

use scene::Scene;

/// Plays the cases of a file and panics with all that came out differently.
fn play(file: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kube_proxy_cases");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    let mut differences = String::new();
    let mut scene = Scene::default();
    let mut name = "";
    let mut checked = true;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(next) = line.strip_prefix("case ") {
            assert!(checked, "{name}: ends without an expectation");
            (name, scene) = (next, Scene::default());
            continue;
        }
        checked = line.starts_with(' ');
        if !checked {
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
                "{file}:{line}: {name}: is planned\n    {planned}"
            )
            .unwrap();
        }
    }
    assert!(checked, "{name}: ends without an expectation");
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
fn health() {
    play("health.txt");
}
