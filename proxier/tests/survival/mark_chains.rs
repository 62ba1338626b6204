//! The chain KUBE-MARK-MASQ while the daemon runs with `--compat-chains`.

use super::{AT_ONCE, serving};

#[test]
fn compat_chains_keep_the_mark_chain_until_cleanup() {
    lab::test(|| {
        if !std::path::Path::new("/proc/net/ip_tables_names").exists() {
            // The chain's rule needs iptables' extensions.
            return;
        }
        // No resync happens during the test.
        let flags = ["--ipvs-sync-period", "1h", "--compat-chains"];
        let flags = [&AT_ONCE[..], &flags].concat();
        let (cluster, mut daemon, mut connections) = serving(&flags);
        let nft = |command: &[&str]| cluster.node.exec(&[&["/usr/sbin/nft"], command].concat());
        let chains = || {
            nft(&["list", "ruleset"])
                .matches("chain KUBE-MARK-MASQ")
                .count()
        };
        daemon.eventually("both families have the chain", || chains() == 2);
        nft(&["flush", "ruleset"]);
        daemon.eventually("both families have it again", || chains() == 2);
        connections.assert_alive("all rules are flushed");
        daemon.terminate();
        assert_eq!(chains(), 2);
        let output = daemon.command("cleanup").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(chains(), 0);
    });
}
