//! Packets through a real kernel with our packet filter: who reaches whom, and what the server sees.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proxier::testing::filter::LocalMode;
use proxier::testing::plan::ServiceAddresses;

mod packets {
    mod addresses;
    mod forward;
    mod icmp;
    mod load;
    mod marks;
    mod node;
    pub(super) mod observed;
    mod order;
    mod replacement;
    pub(super) mod scene;
    mod sctp;
    mod stale;
}

use packets::observed;
use packets::scene::{Answers, Scene};

const CLUSTER: &str = include_str!("conformance/cluster.yaml");
const KUBE_PROXY: &str = include_str!("conformance/kube-proxy-1.36.2.json");
const DUAL: &str = include_str!("packets/dual.yaml");

/// Every row that was observed with kube-proxy; where the Kubernetes documentation says something
/// else, that.
#[test]
fn clients_of_every_service_see_what_they_saw_with_kube_proxy() {
    lab::test(|| {
        let scene = Scene::conformance(CLUSTER);
        let differing: Vec<String> = observed::rows(KUBE_PROXY)
            .iter()
            .filter_map(|row| row.probe(&scene))
            .collect();
        assert!(differing.is_empty(), "{}", differing.join("\n"));
    });
}

/// `tcp` and `udp` frontends of both families at which a Service of `dual.yaml` is.
fn at(v4: &str, v6: &str, tcp: u16, udp: u16) -> [String; 4] {
    [
        format!("tcp {v4}:{tcp}"),
        format!("udp {v4}:{udp}"),
        format!("tcp [{v6}]:{tcp}"),
        format!("udp [{v6}]:{udp}"),
    ]
}

fn set(answers: &[&str]) -> Answers {
    answers.iter().map(|&answer| answer.to_owned()).collect()
}

/// Compares what `client` hears at each of `frontends`.
#[track_caller]
fn check(scene: &Scene, client: &str, frontends: &[String], expected: &[&str]) {
    for frontend in frontends {
        // The kernel sends six ICMP errors to a host at once, and then one a second.
        let times = match expected {
            ["refused"] => 1,
            _ => 3 * expected.len(),
        };
        let answers = scene.ask(client, frontend, times);
        assert_eq!(answers, set(expected), "{client} to {frontend}");
    }
}

/// Clients inside keep their addresses and reach everybody; one outside is masqueraded at a cluster
/// IP, and keeps to this node under policy Local.
#[track_caller]
fn inside_and_outside_differ(scene: &Scene) {
    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check(scene, "pod3", &cluster_ip, &["pod1/client", "podB1/client"]);
    check(scene, "ext", &cluster_ip, &["pod1/node", "podB1/node"]);
    let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
    check(scene, "pod3", &local, &["pod2/client", "podB1/client"]);
    check(scene, "ext", &local, &["pod2/client"]);
}

#[test]
fn both_families_and_protocols() {
    lab::test(|| {
        let scene = Scene::conformance(DUAL);
        let both = ["pod1/client", "podB1/client"];
        let masqueraded = ["pod1/node", "podB1/node"];

        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        check(&scene, "pod3", &cluster_ip, &both);
        check(&scene, "ext", &cluster_ip, &masqueraded);
        check(&scene, "node", &cluster_ip, &masqueraded);
        check(&scene, "pod1", &cluster_ip, &["pod1/node", "podB1/client"]);
        for external in [
            at("198.51.100.1", "2001:db8:51::1", 80, 53),
            at("198.51.100.2", "2001:db8:51::2", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
        ] {
            for client in ["pod3", "ext", "peer", "node"] {
                check(&scene, client, &external, &masqueraded);
            }
        }
        for local in [
            at("198.51.100.3", "2001:db8:51::3", 80, 53),
            at("198.51.100.4", "2001:db8:51::4", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30081, 30054),
        ] {
            check(&scene, "ext", &local, &["pod2/client"]);
            check(&scene, "pod3", &local, &["pod2/client", "podB1/client"]);
            check(&scene, "node", &local, &["pod2/node", "podB1/node"]);
        }
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "ext", &ranged, &["pod1/node"]);
        check(&scene, "node", &ranged, &["pod1/node"]);
        check(&scene, "ext2", &ranged[..1], &["timeout"]);
        check(&scene, "pod3", &ranged[3..], &["timeout"]);
        for empty in [
            at("10.96.4.1", "fd00:10:96::4:1", 80, 53),
            at("198.51.100.6", "2001:db8:51::6", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30084, 30055),
        ] {
            for client in ["pod3", "ext", "peer"] {
                check(&scene, client, &empty, &["refused"]);
            }
            // A process of the node is told by the error of its very system call: EPERM.
            let (tcp, udp) = ([0, 2], [1, 3]);
            check(
                &scene,
                "node",
                &tcp.map(|it| empty[it].clone()),
                &["refused"],
            );
            check(
                &scene,
                "node",
                &udp.map(|it| empty[it].clone()),
                &["unreachable"],
            );
        }
        // No daemon of the node answers at a service address.
        let no_service = at("10.96.1.1", "fd00:10:96::1", 9999, 9999);
        for client in ["pod3", "ext", "node"] {
            check(&scene, client, &no_service, &["refused"]);
        }
        // But it does at the node's own.
        check(
            &scene,
            "ext",
            &["tcp 172.18.0.2:22".into(), "tcp [fd00:172:18::2]:22".into()],
            &["HOST/client"],
        );
    });
}

#[test]
fn with_addresses_on_a_device_and_everything_masqueraded() {
    lab::test(|| {
        let scene = Scene::with(DUAL, ServiceAddresses::Dummy, |config| {
            config.masquerade_all = true;
        });
        let masqueraded = ["pod1/node", "podB1/node"];
        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        for client in ["pod3", "ext", "node"] {
            check(&scene, client, &cluster_ip, &masqueraded);
        }
        // The node's own source is the service address here, which podB1 could not answer.
        let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
        check(&scene, "node", &local, &["pod2/node", "podB1/node"]);
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "node", &ranged, &["pod1/node"]);
    });
}

#[test]
fn clients_inside_are_told_by_the_prefix_of_an_interface() {
    lab::test(|| told_by(LocalMode::InterfaceNamePrefix("veth-".into())));
}

#[test]
fn clients_inside_are_told_by_the_pod_networks_of_the_node() {
    lab::test(|| told_by(LocalMode::NodeCidr));
}

#[test]
fn clients_inside_are_told_by_their_bridge() {
    lab::test(|| told_by(LocalMode::BridgeInterface("veth-pod3".into())));
}

fn told_by(mode: LocalMode) {
    let scene = Scene::with(DUAL, ServiceAddresses::Routes, |config| {
        config.local_mode = mode;
    });
    inside_and_outside_differ(&scene);
}

#[test]
fn source_ranges_hold_for_a_load_balancer_address_that_is_an_external_ip_too() {
    lab::test(|| {
        let ranges = "loadBalancerSourceRanges: [";
        let both = "externalIPs: [198.51.100.5, \"2001:db8:51::5\"]\n  ";
        let manifests = DUAL.replacen(ranges, &format!("{both}{ranges}"), 1);
        assert_ne!(manifests, DUAL);
        let scene = Scene::conformance(&manifests);
        let load_balancer = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "ext", &load_balancer, &["pod1/node"]);
        check(&scene, "ext2", &load_balancer, &["timeout"]);
    });
}

/// Source ranges are about load-balancer addresses alone. A Service's other addresses stay open to
/// everybody, and its load-balancer addresses of both families and protocols stay as open and as shut
/// as they were, while ranges change.
#[test]
fn what_has_no_source_ranges_stays_open_while_they_change() {
    lab::test(|| {
        let ranges = "loadBalancerSourceRanges: [203.0.113.0/24, ";
        let more = "externalIPs: [198.51.100.9, \"2001:db8:51::9\"]\n  ";
        let http = "{name: http, port: 80, targetPort: 8080}";
        let dns = "{name: dns, port: 53, targetPort: 5353, protocol: UDP}";
        let port = |port: &str, number: u16| port.replace('}', &format!(", nodePort: {number}}}"));
        let manifests = DUAL
            .replacen(ranges, &format!("{more}{ranges}"), 1)
            .replacen(http, &port(http, 30086), 1)
            .replacen(dns, &port(dns, 30056), 1);
        let mut scene = Scene::conformance(&manifests);
        let load_balancer = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        for round in 0..6 {
            let changed = format!("{ranges}10.{round}.0.0/16, \"fd00:{round}::/32\", ");
            scene.program(&manifests.replace(ranges, &changed));
            for open in [
                at("198.51.100.9", "2001:db8:51::9", 80, 53),
                at("172.18.0.2", "fd00:172:18::2", 30086, 30056),
            ] {
                check(&scene, "ext2", &open, &["pod1/node"]);
            }
            check(&scene, "ext", &load_balancer, &["pod1/node"]);
            let shut = &load_balancer[round % 4..][..1];
            check(&scene, "ext2", shut, &["timeout"]);
        }
    });
}
