//! The node's own daemons, and tables of iptables.

use super::scene::Scene;
use super::services::Services;
use crate::check;

/// Health-check node ports are the only ports of the node that clients reach at service addresses.
#[test]
fn health_check_node_ports_are_reached_at_node_and_service_addresses() {
    lab::test(|| {
        let checked = Services::dual().edit("local", |local| {
            local.health_check_node_port = Some(31900);
        });
        let mut scene = Scene::new(checked);
        scene.client("node").serve_tcp(31900);

        let own = ["tcp 172.18.0.2:31900", "tcp [fd00:172:18::2]:31900"].map(String::from);
        let balanced = ["tcp 198.51.100.4:31900", "tcp [2001:db8:51::4]:31900"].map(String::from);
        for client in ["ext", "peer", "pod3"] {
            check(&scene, client, &own, &["node-a/client"]);
            check(&scene, client, &balanced, &["node-a/client"]);
        }
        // The node listens on port 9999, too.
        let other = balanced.clone().map(|at| at.replace("31900", "9999"));
        check(&scene, "ext", &other, &["refused"]);

        // Without the health check, the listener is reached at the node's addresses only.
        scene.program(Services::dual());
        check(&scene, "ext", &own, &["node-a/client"]);
        check(&scene, "ext", &balanced, &["refused"]);
    });
}

/// A kernel with iptables-legacy creates its tables in a network namespace at their first use.
#[test]
fn no_table_of_iptables_is_created() {
    lab::test(|| {
        let scene = Scene::new(Services::dual());
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
