//! Packets through a real kernel with our packet filter: which client reaches which server, and which
//! source address the server sees.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proxier::testing::filter::LocalMode;
use proxier::testing::plan::ServiceAddresses;

mod packets {
    mod addresses;
    mod agents;
    mod arp;
    mod elsewhere;
    mod forward;
    mod handover;
    mod host_port_load;
    mod host_ports;
    mod icmp;
    mod input;
    mod limits;
    mod load;
    mod local;
    mod mark_chains;
    mod marks;
    mod mtu;
    mod nftables;
    mod node;
    pub(super) mod observed;
    mod order;
    mod output;
    mod plugin;
    mod policy;
    mod policy_routing;
    mod replacement;
    pub(super) mod scene;
    mod sctp;
    pub(super) mod services;
    mod silence;
    mod source_nat;
    mod stale;
    mod starts;
    mod tenants;
    mod unallocated;
    mod unserved;
}

use packets::observed;
use packets::scene::{Answers, Clients, Scene, Subject};
use packets::services::Services;

const CLUSTER: &str = include_str!("conformance/cluster.yaml");
const KUBE_PROXY: &str = include_str!("conformance/kube-proxy-1.36.2.json");

/// Compares our answers with each row of the conformance data, which were observed with kube-proxy.
/// Where the Kubernetes documentation differs from kube-proxy, the documentation decides.
#[test]
fn each_client_gets_the_same_answers_as_with_kube_proxy_except_for_the_departures() {
    lab::test(|| {
        let scene = Scene::new(CLUSTER);
        let differences = observed::differences(&observed::rows(KUBE_PROXY), scene.clients());
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

/// Returns the `tcp` and `udp` frontends of both families: `tcp v4, udp v4, tcp v6, udp v6`.
fn at(v4: &str, v6: &str, tcp: u16, udp: u16) -> [String; 4] {
    [
        format!("tcp {v4}:{tcp}"),
        format!("udp {v4}:{udp}"),
        format!("tcp [{v6}]:{tcp}"),
        format!("udp [{v6}]:{udp}"),
    ]
}

/// Asserts that `client` receives the `expected` answers, and no others, at each frontend.
#[track_caller]
fn check<D: Subject>(scene: &Scene<D>, client: &str, frontends: &[String], expected: &[&str]) {
    check_in(scene.clients(), client, frontends, expected);
}

/// As [`check`].
#[track_caller]
fn check_in(clients: Clients<'_>, client: &str, frontends: &[String], expected: &[&str]) {
    let expected: Answers = expected.iter().map(|&answer| answer.to_owned()).collect();
    // The kernel sends six ICMP errors to a host at once, and then one a second.
    let is_icmp_error = expected.contains("refused");
    let times = if is_icmp_error { 1 } else { 3 * expected.len() };
    if expected.contains("timeout") {
        let questions: Vec<_> = frontends.iter().map(|it| (client, &**it)).collect();
        for ((client, frontend), answers) in questions.iter().zip(clients.ask_at_once(&questions)) {
            assert_eq!(answers, expected, "{client} to {frontend}");
        }
        return;
    }
    for frontend in frontends {
        let answers = clients.ask_for(client, frontend, &expected, times);
        assert_eq!(answers, expected, "{client} to {frontend}");
    }
}

#[test]
fn each_client_reaches_each_service_over_tcp_and_udp_in_both_families() {
    lab::test(|| check_dual(Scene::new(Services::dual()).clients(), "refused"));
}

/// Asserts what clients get from [`Services::dual`].
///
/// `unlisted` is what a process of the node gets for a datagram to a port that no Service has: `unreachable` if the
/// output hook rejects it.
#[track_caller]
fn check_dual(clients: Clients<'_>, unlisted: &str) {
    let both = ["pod1/client", "podB1/client"];
    let masqueraded = ["pod1/node", "podB1/node"];

    let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
    check_in(clients, "pod3", &cluster_ip, &both);
    check_in(clients, "ext", &cluster_ip, &masqueraded);
    check_in(clients, "node", &cluster_ip, &masqueraded);
    check_in(clients, "pod1", &cluster_ip, &["pod1/node", "podB1/client"]);
    for external in [
        at("198.51.100.1", "2001:db8:51::1", 80, 53),
        at("198.51.100.2", "2001:db8:51::2", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
    ] {
        for client in ["pod3", "ext", "peer", "node"] {
            check_in(clients, client, &external, &masqueraded);
        }
    }
    for local in [
        at("198.51.100.3", "2001:db8:51::3", 80, 53),
        at("198.51.100.4", "2001:db8:51::4", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30081, 30054),
    ] {
        check_in(clients, "ext", &local, &["pod2/client"]);
        check_in(clients, "pod3", &local, &["pod2/client", "podB1/client"]);
        check_in(clients, "node", &local, &["pod2/node", "podB1/node"]);
    }
    let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
    check_in(clients, "ext", &ranged, &["pod1/node"]);
    check_in(clients, "node", &ranged, &["pod1/node"]);
    check_in(clients, "ext2", &ranged[..1], &["timeout"]);
    check_in(clients, "pod3", &ranged[3..], &["timeout"]);
    for empty in [
        at("10.96.4.1", "fd00:10:96::4:1", 80, 53),
        at("198.51.100.6", "2001:db8:51::6", 80, 53),
        at("172.18.0.2", "fd00:172:18::2", 30084, 30055),
    ] {
        for client in ["pod3", "ext", "peer"] {
            check_in(clients, client, &empty, &["refused"]);
        }
        // The output hook rejects a datagram of the node itself, so sendto(2) returns EPERM.
        let [tcp, udp, tcp6, udp6] = empty;
        check_in(clients, "node", &[tcp, tcp6], &["refused"]);
        check_in(clients, "node", &[udp, udp6], &["unreachable"]);
    }
    // The node's daemons listen on all addresses. Clients reach them at the node's own addresses, but
    // not at service addresses.
    let no_service = at("10.96.1.1", "fd00:10:96::1", 9999, 9999);
    for client in ["pod3", "ext"] {
        check_in(clients, client, &no_service, &["refused"]);
    }
    let [tcp, udp, tcp6, udp6] = no_service;
    check_in(clients, "node", &[tcp, tcp6], &["refused"]);
    check_in(clients, "node", &[udp, udp6], &[unlisted]);
    let ssh = ["tcp 172.18.0.2:22", "tcp [fd00:172:18::2]:22"].map(String::from);
    check_in(clients, "ext", &ssh, &["HOST/client"]);
}

#[test]
fn everything_is_masqueraded_with_masquerade_all_and_addresses_on_a_device() {
    lab::test(|| {
        let scene = Scene::with(Services::dual(), ServiceAddresses::Dummy, |config| {
            config.masquerade_all = true;
        });
        let masqueraded = ["pod1/node", "podB1/node"];
        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        for client in ["pod3", "ext", "node"] {
            check(&scene, client, &cluster_ip, &masqueraded);
        }
        // Without masquerade, the node's source would be the service address here, and the route of
        // podB1's answers would not lead to this node.
        let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
        check(&scene, "node", &local, &["pod2/node", "podB1/node"]);
        let ranged = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "node", &ranged, &["pod1/node"]);
    });
}

#[test]
fn an_interface_prefix_tells_clients_inside_from_clients_outside() {
    inside_and_outside_differ(LocalMode::InterfaceNamePrefix("veth-".into()));
}

#[test]
fn pod_networks_of_the_node_tell_clients_inside_from_clients_outside() {
    inside_and_outside_differ(LocalMode::NodeCidr);
}

#[test]
fn a_bridge_tells_clients_inside_from_clients_outside() {
    inside_and_outside_differ(LocalMode::BridgeInterface("veth-pod3".into()));
}

#[test]
fn source_ranges_apply_to_a_load_balancer_address_that_is_an_external_ip_too() {
    lab::test(|| {
        let services = Services::dual().edit("ranged", |service| {
            service.external_ips = vec!["198.51.100.5", "2001:db8:51::5"];
        });
        let scene = Scene::new(&services);
        let load_balancer = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        check(&scene, "ext", &load_balancer, &["pod1/node"]);
        check(&scene, "ext2", &load_balancer, &["timeout"]);
    });
}

/// Asserts that a client inside keeps its address and reaches all endpoints, and that a client outside
/// is masqueraded at a cluster IP and reaches only this node's endpoints under policy Local.
#[track_caller]
fn inside_and_outside_differ(mode: LocalMode) {
    lab::test(|| {
        let scene = Scene::with(Services::dual(), ServiceAddresses::Routes, |config| {
            config.local_mode = mode;
        });
        let cluster_ip = at("10.96.1.1", "fd00:10:96::1", 80, 53);
        check(
            &scene,
            "pod3",
            &cluster_ip,
            &["pod1/client", "podB1/client"],
        );
        check(&scene, "ext", &cluster_ip, &["pod1/node", "podB1/node"]);
        let local = at("198.51.100.4", "2001:db8:51::4", 80, 53);
        check(&scene, "pod3", &local, &["pod2/client", "podB1/client"]);
        check(&scene, "ext", &local, &["pod2/client"]);
    });
}

/// Source ranges restrict load-balancer addresses only.
#[test]
fn addresses_without_source_ranges_stay_open_while_ranges_change() {
    lab::test(|| {
        let services = Services::dual().edit("ranged", |service| {
            service.external_ips = vec!["198.51.100.9", "2001:db8:51::9"];
            service.set_node_ports([30086, 30056]);
        });
        let mut scene = Scene::new(&services);
        let load_balancer = at("198.51.100.5", "2001:db8:51::5", 80, 53);
        for round in 0..6 {
            scene.program(services.clone().with_more_source_ranges(round));
            for open in [
                at("198.51.100.9", "2001:db8:51::9", 80, 53),
                at("172.18.0.2", "fd00:172:18::2", 30086, 30056),
            ] {
                check(&scene, "ext2", &open, &["pod1/node"]);
            }
            check(&scene, "ext", &load_balancer, &["pod1/node"]);
            let closed = &load_balancer[round % 4..][..1];
            check(&scene, "ext2", closed, &["timeout"]);
        }
    });
}
