//! Somebody else drops what is forwarded (Docker's `iptables -P FORWARD DROP`): what passes there,
//! and what the other's rules have to accept.
//!
//! No table can overrule another's drop. But of a Service's packets only the answers of endpoints
//! are ever forwarded: IPVS takes requests from the input hook and sends them on by the output hook.
//! So the one rule that everybody has who drops, `ct state established,related accept`, is enough.

use lab::net::Host;
use proxier::nftables::Forwarding;

use super::scene::Scene;
use crate::{DUAL, at, check};

/// A foreign policy of drop, with `rules` before it, and a count of requests that pass by.
fn policy_drop(scene: &Scene, rules: &str) {
    nft(
        scene.client("node"),
        &format!(
            "table inet others {{
                chain forward {{
                    type filter hook forward priority filter; policy drop
                    ct direction original counter
                    {rules}
                }}
            }}"
        ),
    );
}

fn nft(node: &Host, commands: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), commands).unwrap();
    let path = file.path().to_str().unwrap();
    node.exec(&["/usr/sbin/nft", "-f", path]);
}

#[test]
fn one_rule_for_established_connections_is_enough_for_everybody() {
    lab::test(|| {
        let scene = Scene::conformance(DUAL);
        policy_drop(&scene, "ct state established,related accept");

        let both = ["pod1/client", "podB1/client"];
        let masqueraded = ["pod1/node", "podB1/node"];
        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        check(&scene, "pod3", &cluster_ip, &both);
        check(&scene, "pod1", &cluster_ip, &["pod1/node", "podB1/client"]);
        for external in [
            cluster_ip,
            at("198.51.100.2", "2001:db8:51::2", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
        ] {
            for client in ["ext", "peer", "node"] {
                check(&scene, client, &external, &masqueraded);
            }
        }
        for local in [
            at("198.51.100.4", "2001:db8:51::4", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30081, 30054),
        ] {
            check(&scene, "ext", &local, &["pod2/client"]);
            check(&scene, "pod3", &local, &["pod2/client", "podB1/client"]);
        }
        let list = ["/usr/sbin/nft", "list", "table", "inet", "others"];
        let requests = scene.client("node").exec(&list);
        assert!(
            requests.contains("original counter packets 0 "),
            "{requests}"
        );

        // Refusals are the node's own words, which nobody forwards.
        let empty = at("198.51.100.6", "2001:db8:51::6", 80, 53);
        check(&scene, "ext", &empty, &["refused"]);
    });
}

#[test]
fn without_it_only_the_node_itself_hears_the_answers() {
    lab::test(|| {
        let scene = Scene::conformance(DUAL);
        policy_drop(&scene, "");

        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        check(&scene, "node", &cluster_ip, &["pod1/node", "podB1/node"]);
        let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
        check(&scene, "node", &local, &["pod2/node", "podB1/node"]);
        for (client, frontends) in [
            ("pod3", &cluster_ip),
            ("pod1", &cluster_ip),
            ("ext", &cluster_ip),
            ("ext", &local),
        ] {
            // One of each family is enough of silence.
            let [tcp, _, _, udp6] = frontends.clone();
            check(&scene, client, &[tcp, udp6], &["timeout"]);
        }
    });
}

/// Chains of policy drop, each with whether it accepts established connections in general.
const CHAINS: [(&str, bool); 9] = [
    ("", false),
    ("tcp dport 22 accept", false),
    ("ct state established,related accept", true),
    ("ct state { established, related } counter accept", true),
    (
        "ct state vmap { established : accept, invalid : drop }",
        true,
    ),
    ("ct state new accept", false),
    ("oifname docker0 ct state established accept", false),
    ("ip saddr 192.0.2.1 jump one; jump two", true),
    ("iifname eth7 jump two; ct state established drop", false),
];

#[test]
fn chains_without_the_rule_are_found() {
    lab::test(|| {
        let node = lab::net::node("node-a");
        let mut forwarding = Forwarding::open().unwrap();
        assert!(forwarding.obstacles().unwrap().is_empty());
        for (rules, accepts) in CHAINS {
            for family in ["ip", "ip6", "inet"] {
                if family == "ip6" && rules.contains("ip saddr") {
                    continue;
                }
                let table = format!(
                    "flush ruleset
                    table {family} others {{
                        chain one {{ accept; }}
                        chain two {{ jump three; }}
                        chain three {{ ct state established accept; jump one; }}
                        chain harmless {{ type filter hook forward priority 1; policy accept; }}
                        chain input {{ type filter hook input priority 0; policy drop; }}
                        chain forward {{ type filter hook forward priority 0; policy drop; {rules}; }}
                    }}"
                );
                nft(&node, &table);
                let found = forwarding.obstacles().unwrap();
                let words: Vec<String> = found.iter().map(ToString::to_string).collect();
                assert_eq!(words.is_empty(), accepts, "{family} {rules}: {words:?}");
                let command = words.iter().find_map(|words| words.split('`').nth(1));
                if let Some(command) = command {
                    // What it says helps.
                    node.exec(&["/bin/sh", "-c", &format!("PATH=/usr/sbin {command}")]);
                    assert!(forwarding.obstacles().unwrap().is_empty(), "{command}");
                }
            }
        }
    });
}
