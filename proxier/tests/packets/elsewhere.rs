//! Services that ask for addresses of other machines.

use lab::net::{Answer, Connection};

use super::scene::Scene;
use super::services::Services;
use crate::{at, check};

/// Addresses of the host `peer`, which is the next hop of the routes to the Pods of node-b.
const PEER: (&str, &str) = ("172.18.0.3", "fd00:172:18::3");

/// Addresses of the node itself, and of no machine.
const OWN: (&str, &str) = ("172.18.0.2", "fd00:172:18::2");
const FREE: (&str, &str) = ("198.51.100.2", "2001:db8:51::2");

/// Returns the Services; web has addresses of `peer`, as k3s' servicelb gives it those of all nodes.
fn greedy() -> Services {
    Services::dual().edit("web", |web| {
        web.load_balancer_ips = vec![OWN.0, PEER.0, FREE.0, OWN.1, PEER.1, FREE.1];
        web.external_ips = vec![PEER.0, PEER.1];
    })
}

/// Connections of the node and of a Pod to the peer, in both families.
fn connect(scene: &Scene) -> Vec<Connection> {
    let clients = ["node", "pod3"].map(|name| scene.client(name));
    let addresses = [format!("{}:9999", PEER.0), format!("[{}]:9999", PEER.1)];
    let pairs = clients
        .iter()
        .flat_map(|host| addresses.iter().map(move |at| (host, at)));
    pairs.map(|(host, at)| host.connect(at).unwrap()).collect()
}

/// Asserts that new and open connections reach the peer, and that web serves its other addresses.
#[track_caller]
fn both_are_reached(scene: &Scene, open: &mut [Connection]) {
    for connection in open {
        let answer = connection.ask();
        assert!(matches!(answer, Answer::Reply { .. }), "{answer}");
    }
    let daemon = [
        format!("tcp {}:9999", PEER.0),
        format!("tcp [{}]:9999", PEER.1),
    ];
    check(scene, "pod3", &daemon, &["peer/client"]);
    check(scene, "node", &daemon, &["peer/node"]);
    for (v4, v6) in [OWN, FREE] {
        let web = at(v4, v6, 80, 53);
        for client in ["ext", "pod3", "node"] {
            check(scene, client, &web, &["pod1/node", "podB1/node"]);
        }
    }
}

#[test]
fn a_service_does_not_get_the_address_of_another_machine() {
    lab::test(|| {
        let own = Services::dual().edit("web", |web| {
            web.load_balancer_ips = vec![OWN.0, FREE.0, OWN.1, FREE.1];
        });
        let mut scene = Scene::new(&own);
        scene.client("peer").serve_tcp(9999);
        let mut open = connect(&scene);
        both_are_reached(&scene, &mut open);

        scene.program(greedy());
        both_are_reached(&scene, &mut open);
        // The machine that has the address decides about the Service's port, too.
        let [tcp, _, tcp6, _] = at(PEER.0, PEER.1, 80, 53);
        check(&scene, "pod3", &[tcp, tcp6], &["refused"]);
        let problems = scene.proxier.problems();
        let problems = problems
            .iter()
            .filter(|it| it.object == "Service default/web");
        let values: Vec<&str> = problems.map(|problem| &*problem.value).collect();
        assert_eq!(values, [PEER.0, PEER.1, PEER.0, PEER.1]);

        scene.restart();
        scene.program(greedy());
        both_are_reached(&scene, &mut open);

        // An earlier version took the addresses.
        let node = scene.client("node");
        for (family, address) in [("-4", PEER.0), ("-6", PEER.1)] {
            let route = [
                "route",
                "add",
                "local",
                address,
                "dev",
                "kube-ipvs0",
                "table",
                "local",
            ];
            let ours = ["proto", "73", "metric", "73"];
            node.exec(&[&["ip", family][..], &route[..], &ours[..]].concat());
        }
        scene.restart();
        scene.program(greedy());
        both_are_reached(&scene, &mut connect(&scene));

        scene.program(&own);
        both_are_reached(&scene, &mut open);
    });
}
