//! What the node's own daemons hear, and what the rules need of the kernel.

use super::scene::Scene;
use crate::{DUAL, check};

/// Its own listener on a health-check node port is reached at the node's addresses and at service
/// addresses, where nothing else of the node's is.
#[test]
fn health_check_node_ports_are_reached() {
    lab::test(|| {
        let policy = "externalTrafficPolicy: Local\n";
        let checked = DUAL.replacen(
            policy,
            &format!("{policy}  healthCheckNodePort: 31900\n"),
            1,
        );
        assert_ne!(checked, DUAL);
        let mut scene = Scene::conformance(&checked);
        scene.client("node").serve_tcp(31900);

        let own = ["tcp 172.18.0.2:31900", "tcp [fd00:172:18::2]:31900"].map(String::from);
        let balanced = ["tcp 198.51.100.4:31900", "tcp [2001:db8:51::4]:31900"].map(String::from);
        for client in ["ext", "peer", "pod3"] {
            check(&scene, client, &own, &["node-a/client"]);
            check(&scene, client, &balanced, &["node-a/client"]);
        }
        // Its neighbour, which is no health check's.
        let neighbour = balanced.clone().map(|at| at.replace("31900", "9999"));
        check(&scene, "ext", &neighbour, &["refused"]);

        // A Service that checks no more leaves the listener where it is, but for service addresses.
        scene.program(DUAL);
        check(&scene, "ext", &own, &["node-a/client"]);
        check(&scene, "ext", &balanced, &["refused"]);
    });
}

/// Kernels with legacy iptables make a table in a network namespace when somebody first uses it.
#[test]
fn no_table_of_iptables_comes_to_be() {
    lab::test(|| {
        let scene = Scene::conformance(DUAL);
        let everywhere = ["tcp 10.96.1.1:80", "udp [2001:db8:51::2]:53"].map(String::from);
        check(&scene, "ext", &everywhere, &["pod1/node", "podB1/node"]);
        for host in ["node", "peer", "pod1", "ext"] {
            for list in ["ip_tables_names", "ip6_tables_names", "arp_tables_names"] {
                let tables = scene
                    .client(host)
                    .run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{list}")));
                // A kernel without iptables has no such file.
                assert_eq!(tables.unwrap_or_default(), "", "{list} of {host}");
            }
        }
    });
}
