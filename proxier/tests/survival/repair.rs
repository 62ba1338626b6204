//! Another program flushes all packet rules while the daemon runs.

use std::time::{Duration, Instant};

use super::{AT_ONCE, serving};

/// The foreign rules that a flush deletes together with ours.
#[derive(Clone, Copy, Debug)]
enum Foreign {
    EmptyTable,
    /// A chain that drops forwarded packets, and so has a rule of ours.
    DroppingChain,
}

/// Flushes all packet rules three times and waits until our table is restored. Returns how long that took.
///
/// Only a notification of the kernel can cause the repair, because no resync happens for an hour.
fn restored_after_flushes(flags: &[&str], foreign: Foreign) -> Vec<Duration> {
    let flags = [flags, &["--ipvs-sync-period", "1h"]].concat();
    let (cluster, daemon, mut connections) = serving(&flags);
    let sh = |command: &str| {
        let command = format!("PATH=/usr/sbin:/usr/bin:/bin; {command}");
        cluster.node.exec(&["/bin/sh", "-c", &command])
    };
    let mut took = Vec::new();
    for _ in 0..3 {
        sh("nft add table inet others");
        if matches!(foreign, Foreign::DroppingChain) {
            let hook = "type filter hook forward priority 0 ; policy drop ;";
            sh(&format!("nft 'add chain inet others forward {{ {hook} }}'"));
            daemon.eventually("the chain has our rule", || {
                sh("nft list ruleset").contains("answers of")
            });
        }
        sh("nft flush ruleset");
        let start = Instant::now();
        daemon.eventually("our table is restored", || {
            sh("nft list tables").contains("ipvs-proxier")
        });
        took.push(start.elapsed());
        connections.assert_alive("a flush");
    }
    took
}

#[test]
fn a_flush_is_repaired_at_once() {
    lab::test(|| {
        let took = restored_after_flushes(&AT_ONCE, Foreign::EmptyTable);
        println!("{took:?}");
    });
}

#[test]
fn a_repair_does_not_wait_for_the_next_round() {
    lab::test(|| {
        let flags = ["--ipvs-min-sync-period", "1h"];
        let took = restored_after_flushes(&flags, Foreign::EmptyTable);
        println!("{took:?}");
    });
}

#[test]
fn a_flush_of_a_dropping_forward_chain_is_repaired_at_once() {
    lab::test(|| {
        let took = restored_after_flushes(&AT_ONCE, Foreign::DroppingChain);
        println!("{took:?}");
    });
}
