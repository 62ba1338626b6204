//! Somebody flushes all packet rules while the program runs.

use std::time::{Duration, Instant};

use super::{AT_ONCE, serving};

/// Flushes everything a few times; without being told so, the program would not look for an hour.
/// `beside` are commands to nft that make what else there is. Answers how long it took to bring our
/// table back.
fn flush(flags: &[&str], beside: &str) -> Vec<Duration> {
    // Too long for a resync to find anything.
    let flags = [flags, &["--ipvs-sync-period", "1h"]].concat();
    let (cluster, daemon, mut connections) = serving(&flags);
    let sh = |command: &str| {
        let command = format!("PATH=/usr/sbin:/usr/bin:/bin; {command}");
        cluster.node.exec(&["/bin/sh", "-c", &command])
    };
    let mut took = Vec::new();
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
        took.push(start.elapsed());
        connections.live("a flush");
    }
    took
}

#[test]
fn a_flush_is_repaired_at_once() {
    lab::test(|| println!("{:?}", flush(&AT_ONCE, "add table inet others")));
}

#[test]
fn a_repair_does_not_wait_for_the_next_round() {
    lab::test(|| {
        println!(
            "{:?}",
            flush(&["--ipvs-min-sync-period", "1h"], "add table inet others")
        )
    });
}

#[test]
fn a_flush_that_takes_a_forward_chain_along_is_repaired_at_once() {
    let beside = "add table inet others; \
        add chain inet others forward { type filter hook forward priority 0 ; policy drop ; }";
    lab::test(move || println!("{:?}", flush(&AT_ONCE, beside)));
}
