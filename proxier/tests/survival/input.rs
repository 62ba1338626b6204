//! Another program drops incoming packets while the daemon runs.

use lab::net::{Answer, Cluster};

use super::{AT_ONCE, serving};

/// A firewall in nft's syntax.
const FIREWALL: &str = "add table inet others { chain in { type filter hook input priority 0 ; policy drop ; \
                        ct state established accept ; } ; }";

fn nft(cluster: &Cluster, command: &str) -> String {
    cluster.node.exec(&["/usr/sbin/nft", command])
}

#[test]
fn a_firewall_opens_for_frontends_while_the_daemon_runs() {
    lab::test(|| {
        // No resync happens during the test.
        let accept = [
            "--ipvs-sync-period",
            "1h",
            "--input-drop",
            "accept",
            "--arp",
            "services",
        ];
        let flags = [&AT_ONCE[..], &accept].concat();
        let (cluster, mut daemon, mut connections) = serving(&flags);
        nft(&cluster, FIREWALL);
        let list = || nft(&cluster, "list table inet others");
        let has_rule = || list().contains("ipvs-proxier");
        daemon.eventually("the chain has our rule", has_rule);
        connections.assert_alive("a firewall");
        assert!(cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_some());
        assert_eq!(cluster.pod3.ask_tcp("172.18.0.2:22"), Answer::Timeout);
        nft(&cluster, "flush chain inet others in");
        daemon.eventually("the chain has our rule again", has_rule);
        connections.assert_alive("a flush");
        let tables = || nft(&cluster, "list tables");
        let has_arp = || tables().contains("table arp ipvs-proxier");
        assert!(has_arp());
        nft(&cluster, "delete table arp ipvs-proxier");
        daemon.eventually("the table of family arp is back", has_arp);
        let bare = "table inet others {\n\tchain in {\n\t\t\
                    type filter hook input priority filter; policy drop;\n\t}\n}\n";
        daemon.terminate();
        let output = daemon.command("cleanup").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(list(), bare);
        assert_eq!(tables(), "table inet others\n");
    });
}

#[test]
fn by_default_the_log_names_a_firewall_once() {
    lab::test(|| {
        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
        let (cluster, daemon, _) = serving(&flags);
        nft(&cluster, FIREWALL);
        let words = "chain in of table inet others drops incoming packets by its policy";
        let times = || daemon.log().matches(words).count();
        daemon.eventually("the log names the chain", || times() == 1);
        assert!(
            daemon
                .log()
                .contains("start ipvs-proxier with `--input-drop=accept`")
        );
        assert_eq!(cluster.pod3.ask_tcp("10.96.1.1:80"), Answer::Timeout);
        assert!(!nft(&cluster, "list table inet others").contains("ipvs-proxier"));
        assert_eq!(times(), 1, "{}", daemon.log());
    });
}
