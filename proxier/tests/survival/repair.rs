//! Somebody flushes all packet rules while the program runs.

use std::time::{Duration, Instant};

use super::{AT_ONCE, serving};

/// How soon our table has to be there again: long before the next round, and not so soon that a busy
/// machine fails. It takes 0.2 to 0.6 s, beside three builds.
const SOON: Duration = Duration::from_secs(5);

/// Flushes everything a few times. `beside` are commands to nft that make what else there is.
fn flush(flags: &[&str], beside: &str) {
    // Too long for a resync to find anything.
    let flags = [flags, &["--ipvs-sync-period", "1h"]].concat();
    let (cluster, daemon, mut connections) = serving(&flags);
    let sh = |command: &str| {
        let command = format!("PATH=/usr/sbin:/usr/bin:/bin; {command}");
        cluster.node.exec(&["/bin/sh", "-c", &command])
    };
    for _ in 0..3 {
        sh(&format!("nft '{beside}'"));
        if beside.contains("policy drop") {
            daemon.eventually("answers pass", || {
                sh("nft list ruleset").contains("answers of")
            });
        }
        sh("nft flush ruleset");
        let start = Instant::now();
        daemon.eventually("our table", || {
            sh("nft list tables").contains("ipvs-proxier")
        });
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        connections.live("a flush");
    }
}

#[test]
fn a_flush_is_repaired_at_once() {
    lab::test(|| flush(&AT_ONCE, "add table inet others"));
}

#[test]
fn a_repair_does_not_wait_for_the_next_round() {
    lab::test(|| flush(&["--ipvs-min-sync-period", "10s"], "add table inet others"));
}

#[test]
fn a_flush_that_takes_a_forward_chain_along_is_repaired_at_once() {
    let beside = "add table inet others; \
        add chain inet others forward { type filter hook forward priority 0 ; policy drop ; }";
    lab::test(move || flush(&AT_ONCE, beside));
}
