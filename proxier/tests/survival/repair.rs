//! Another program flushes all packet rules while the daemon runs.

use std::time::{Duration, Instant};

use super::{AT_ONCE, AT_ONCE_BY_NFTABLES, serving};

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
fn a_flush_of_the_maps_is_repaired_at_once() {
    lab::test(|| {
        let took = restored_after_flushes(&AT_ONCE_BY_NFTABLES, Foreign::EmptyTable);
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
            // IPVS resets this setting when its module is loaded again.
            sh(format!("echo 0 > {conntrack}"));
            daemon.eventually("a resync restores what IPVS needs", || {
                read(conntrack) == "1"
            });
        }
        assert_eq!(read(timeout), "600");
        // The lines are written after the settings.
        let changed = "nf_conntrack_tcp_timeout_established was changed to 600";
        let restored = "restored net.ipv4.vs.conntrack=1, was 0";
        daemon.eventually("the log names both", || {
            let log = daemon.log();
            log.contains(changed) && log.contains(restored)
        });
        let log = daemon.log();
        assert_eq!(log.matches(changed).count(), 1, "{log}");
    });
}
