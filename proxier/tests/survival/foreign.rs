//! Packet rules of other programs stay byte for byte the same while the daemon runs and after `cleanup`.
//!
//! The only exception: until `cleanup`, chains that drop forwarded packets have a rule of ours.

use std::path::Path;

use lab::net::{Answer, Cluster};

use super::daemon::{Daemon, web_key};
use super::{AT_ONCE, POD1, POD2};

/// A foreign filter with everything that nft lists: elements, verdicts, comments, a limit, an object.
const OF_NFT: &str = "
    table inet others {
        comment \"a foreign table\"
        counter seen {
            comment \"of all that is forwarded\"
        }
        set friends {
            type ipv4_addr . inet_service
            flags interval
            elements = { 192.0.2.0/24 . 443, 198.51.100.9 . 1-1024 }
        }
        map ways {
            type inet_proto : verdict
            elements = { tcp : jump strangers, icmp : accept }
        }
        chain strangers {
            ip6 saddr 2001:db8:bad::/48 drop comment \"known\"
            limit rate 5/minute counter accept
        }
        chain forward {
            type filter hook forward priority filter; policy drop
            counter
            ip saddr . tcp dport @friends accept
            meta l4proto vmap @ways
            tcp dport 22 meta mark set 0x7 accept
        }
        chain output {
            type route hook output priority mangle; policy accept
            meta mark 0x99 meta priority set 1:2
        }
    }
    table ip ours-too {
        chain nat {
            type nat hook postrouting priority srcnat; policy accept
            ip saddr 10.9.0.0/16 masquerade
        }
    }
";

/// Rules like those of Docker and of administrators.
const OF_IPTABLES: [&str; 8] = [
    "iptables-nft -P FORWARD DROP",
    "iptables-nft -A FORWARD -p tcp --dport 22 -m comment --comment ssh -j ACCEPT",
    "iptables-nft -N DOCKER-USER",
    "iptables-nft -A DOCKER-USER -s 192.0.2.0/24 -j RETURN",
    "iptables-nft -t nat -A POSTROUTING -s 10.9.0.0/16 -j MASQUERADE",
    "iptables-nft -t mangle -A PREROUTING -i eth7 -j MARK --set-xmark 0x10/0xff",
    "ip6tables-nft -P FORWARD DROP",
    "ip6tables-nft -A FORWARD -p udp --dport 123 -j ACCEPT",
];

/// The comment of our rule in foreign chains.
const OUR_COMMENT: &str = "ipvs-proxier: answers of endpoints";

/// The packet rules of other programs on the node.
struct ForeignRules<'a> {
    cluster: &'a Cluster,
    has_iptables: bool,
}

impl<'a> ForeignRules<'a> {
    /// Adds the rules.
    fn add(cluster: &'a Cluster) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), OF_NFT).unwrap();
        let load = ["/usr/sbin/nft", "-f", file.path().to_str().unwrap()];
        cluster.node.exec(&load);
        let rules = Self {
            cluster,
            // Kernels without iptables-legacy lack the extensions that these rules need.
            has_iptables: Path::new("/proc/net/ip_tables_names").exists(),
        };
        if rules.has_iptables {
            for command in OF_IPTABLES {
                rules.on_node(command);
            }
        }
        rules
    }

    /// Runs a shell command on the node.
    fn on_node(&self, command: &str) -> String {
        let command = format!("PATH=/usr/sbin:/usr/bin:/bin; {command}");
        self.cluster.node.exec(&["/bin/sh", "-c", &command])
    }

    /// Returns the number of chains that drop the answers of endpoints.
    fn dropping_chains(&self) -> usize {
        if self.has_iptables { 3 } else { 1 }
    }

    /// Returns all packet rules of the node, with handles and without counters.
    fn everything(&self) -> String {
        self.on_node("nft -s -a list ruleset") + &self.saved()
    }

    /// Returns the rules that iptables saves, without the time and the packet counts.
    fn saved(&self) -> String {
        if !self.has_iptables {
            return String::new();
        }
        self.on_node(r"(iptables-nft-save; ip6tables-nft-save) | sed '/^#/d; s/ \[[0-9:]*\]$//'")
    }

    /// Returns all packet rules but those of our own table.
    fn foreign(&self) -> String {
        let tables = ["inet others", "ip ours-too"];
        let listed = tables.map(|table| self.on_node(&format!("nft -s -a list table {table}")));
        listed.concat() + &self.saved()
    }
}

#[test]
fn packet_rules_of_other_programs_stay_byte_for_byte() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let rules = ForeignRules::add(&cluster);
        let before = rules.everything();
        let foreign = rules.foreign();
        assert!(!before.contains(OUR_COMMENT));

        let flags = [&AT_ONCE[..], &["--ipvs-sync-period", "1s"]].concat();
        let mut daemon = Daemon::new(&flags);
        daemon.endpoints(&[POD1]);
        let serves = |daemon: &Daemon, endpoint: (u8, u8)| {
            daemon.await_endpoints(&[endpoint]);
            daemon.eventually("answers of endpoints pass", || {
                matches!(cluster.pod3.ask_tcp("10.96.1.1:80"), Answer::Reply { .. })
            });
            let now = rules.foreign();
            let is_ours = |line: &&str| line.contains(OUR_COMMENT);
            let ours = now.lines().filter(is_ours).count();
            assert_eq!(ours, rules.dropping_chains(), "{now}");
            let theirs: Vec<&str> = now.lines().filter(|line| !is_ours(line)).collect();
            assert_eq!(theirs, foreign.lines().collect::<Vec<_>>());
        };
        let rules_inserted = |daemon: &Daemon| {
            let count = || rules.foreign().matches(OUR_COMMENT).count();
            daemon.eventually("every chain has our rule", || {
                count() == rules.dropping_chains()
            });
        };
        daemon.start();
        rules_inserted(&daemon);
        serves(&daemon, POD1);
        daemon.endpoints(&[POD2]);
        serves(&daemon, POD2);
        // The next daemon recognises the rules of the one before.
        daemon.kill();
        daemon.start();
        daemon.endpoints(&[POD1]);
        serves(&daemon, POD1);
        // The daemon adds its own table again after another program deleted it.
        rules.on_node("nft delete table inet ipvs-proxier");
        daemon.eventually("the table is restored", || {
            rules.on_node("nft list tables").contains("ipvs-proxier")
        });
        serves(&daemon, POD1);
        daemon.api.delete(&web_key());
        daemon.eventually("the Service is gone", || {
            cluster.pod3.ask_tcp("10.96.1.1:80").backend().is_none()
        });

        daemon.terminate();
        let cleanup = daemon.command("cleanup").output().unwrap();
        assert!(cleanup.status.success(), "{cleanup:?}");
        let left = rules.everything();
        assert_eq!(
            left.lines().collect::<Vec<_>>(),
            before.lines().collect::<Vec<_>>()
        );
    });
}
