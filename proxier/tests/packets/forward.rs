//! Somebody else drops what is forwarded (Docker's `iptables -P FORWARD DROP`): what passes there,
//! and what the other's rules have to accept.
//!
//! No table can overrule another's drop. But of a Service's packets only the answers of endpoints
//! are ever forwarded: IPVS takes requests from the input hook and sends them on by the output hook.
//! So the one rule that everybody has who drops, `ct state established,related accept`, is enough.

use super::scene::Scene;
use crate::{DUAL, at, check};

/// A foreign policy of drop, with `rules` before it, and a count of requests that pass by.
fn policy_drop(scene: &Scene, rules: &str) {
    nft(
        scene,
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

fn nft(scene: &Scene, commands: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), commands).unwrap();
    let path = file.path().to_str().unwrap();
    scene.client("node").exec(&["/usr/sbin/nft", "-f", path]);
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
