//! Runs `bench cluster` with a tiny cluster: its output, its files, and a peer that fails.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Returns whether the lab has a kernel; if not, skips the test.
fn has_kernel() -> bool {
    let is_named = std::env::var_os("LAB_KERNEL").is_some();
    let is_allowed = std::env::var_os("LAB_REQUIRED").is_none() && std::env::var_os("CI").is_none();
    assert!(is_named || is_allowed, "LAB_KERNEL names no kernel");
    if !is_named {
        eprintln!("SKIP: LAB_KERNEL names no kernel");
    }
    is_named
}

/// Returns the path of the proxy beside this program, which `cargo test --workspace` has built.
fn proxier() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_bench")).with_file_name("ipvs-proxier");
    if !path.is_file() {
        // With this package, so that dependencies have the features with which they were built.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "bench", "-p", "proxier"]);
        assert!(cargo.status().unwrap().success());
    }
    path
}

/// Runs a cluster of 20 Services, with these arguments.
fn cluster(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["cluster", "--services", "20", "--endpoints", "3"])
        .args(["--changes", "10", "--duration", "2", "--idle", "1"])
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap()
}

#[test]
fn a_tiny_cluster_is_measured() {
    if !has_kernel() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let proxier = proxier();
    let output = cluster(&[
        "--phases=idle,churn,relist,way",
        "--proxier",
        proxier.to_str().unwrap(),
        "--out",
        folder.path().to_str().unwrap(),
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("20 x 3 endpoints"), "{text}");

    let json = std::fs::read_to_string(folder.path().join("results.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();
    let outcome = &report["outcomes"][0];
    assert_eq!(outcome["notes"], serde_json::json!([]));
    let start = &outcome["start"];
    assert!(start["programmed_secs"].as_f64().unwrap() > 0.0);
    assert!(start["api_service_secs"].as_f64().unwrap() > 0.0);
    // At least a request for each virtual server and each endpoint.
    assert!(start["cost"]["messages"]["requests"].as_u64().unwrap() >= 80);
    let steps = outcome["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 4);
    for step in steps {
        assert_eq!(step["is_correct"], true, "{step}");
        assert_eq!(step["missed"], 0, "{step}");
    }
    assert!(steps[1]["latency"]["max"].as_f64().unwrap() > 0.0);
    assert_eq!(steps[1]["changes"], 20);
    // A resync in this time reads single objects, too, such as the generation of the packet rules. Changes of
    // 20 Services would be at least 20 requests.
    let requests = &steps[2]["cost"]["messages"]["requests"];
    assert!(requests.as_u64().unwrap() < 20, "{}", steps[2]);

    let way = &steps[3]["way"];
    for times in ["connection", "request", "pod_connection", "pod_request"] {
        assert!(way[times]["p50"].as_f64().unwrap() > 0.0, "{way}");
    }

    let page = std::fs::read_to_string(folder.path().join("index.html")).unwrap();
    assert!(
        page.contains("Latency from the API to the kernel"),
        "{page}"
    );
    assert!(!page.contains("http"), "the page refers to another host");
}

#[test]
fn a_peer_that_ends_is_reported() {
    if !has_kernel() {
        return;
    }
    let output = cluster(&["--peers-only", "--peer", "cat {kubeconfig}"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("cat, round 1: the log ends with"), "{text}");
    assert!(
        text.contains("the proxy ended with exit status: 0"),
        "{text}"
    );
}
