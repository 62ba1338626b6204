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

#[test]
fn a_later_change_of_a_node_setting_stays_and_ipvs_settings_are_restored() {
    let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
    lab::test(move || {
        let (cluster, daemon, _) = serving(&flags);
        let timeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
        let conntrack = "/proc/sys/net/ipv4/vs/conntrack";
        let sh = |command: String| cluster.node.exec(&["/bin/sh", "-c", &command]);
        let read = |file| sh(format!("cat {file}")).trim().to_owned();
        assert_eq!((&*read(timeout), &*read(conntrack)), ("86400", "1"));

        // An administrator shortens a timeout because the table of connections is full.
        sh(format!("echo 600 > {timeout}"));
        for _ in 0..2 {
            // IPVS does so when its module is loaded again.
            sh(format!("echo 0 > {conntrack}"));
            daemon.eventually("a resync restores what IPVS needs", || {
                read(conntrack) == "1"
            });
        }
        assert_eq!(read(timeout), "600");
        let log = daemon.log();
        let words = "nf_conntrack_tcp_timeout_established was changed to 600";
        assert_eq!(log.matches(words).count(), 1, "{log}");
        assert!(
            log.contains("restored net.ipv4.vs.conntrack=1, was 0"),
            "{log}"
        );
    });
}
