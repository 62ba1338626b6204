//! Three special cases: addresses that both the node and a Service have, Service ports with the number of
//! another Service's node port, and ping of service addresses.

use std::net::SocketAddr;
use std::process::Command;

use lab::net::Answer;
use proxier::testing::model::TrafficPolicy;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::{POD2, Port, Service, Services};
use crate::{at, check};

/// Addresses of the node.
const OWN: [(&str, &str); 2] = [
    ("172.18.0.2", "fd00:172:18::2"),
    ("203.0.113.1", "2001:db8:113::1"),
];

/// Returns the Services. Service web has the node's own addresses as external and load-balancer IPs.
fn with_own_addresses() -> Services {
    let [(external_v4, external_v6), (balanced_v4, balanced_v6)] = OWN;
    Services::dual().edit("web", |web| {
        web.external_ips = vec![external_v4, external_v6];
        web.load_balancer_ips = vec![balanced_v4, balanced_v6];
    })
}

/// Asserts that clients reach the node's daemons at its own addresses, and that the kernel refuses
/// connections to a port at which no daemon listens.
#[track_caller]
fn daemons_are_reached_at_own_addresses(scene: &Scene) {
    for (v4, v6) in OWN {
        let daemons =
            [22, 9999].map(|port| [format!("tcp {v4}:{port}"), format!("tcp [{v6}]:{port}")]);
        for client in ["ext", "pod3"] {
            check(scene, client, daemons.as_flattened(), &["HOST/client"]);
            assert!(
                pings(scene, client, v4) && pings(scene, client, v6),
                "{client}"
            );
        }
        check(scene, "node", daemons.as_flattened(), &["HOST/node"]);
        let [tcp, _, tcp6, _] = at(v4, v6, 7, 7);
        for client in ["ext", "pod3", "node"] {
            check(scene, client, &[tcp.clone(), tcp6.clone()], &["refused"]);
        }
    }
}

#[test]
fn own_addresses_are_not_filtered_with_service_addresses_as_routes() {
    own_addresses_are_not_filtered(ServiceAddresses::Routes);
}

#[test]
fn own_addresses_are_not_filtered_with_service_addresses_on_a_device() {
    own_addresses_are_not_filtered(ServiceAddresses::Dummy);
}

fn own_addresses_are_not_filtered(form: ServiceAddresses) {
    lab::test(|| {
        let services = with_own_addresses();
        let mut scene = Scene::with(&services, form, |_| {});
        daemons_are_reached_at_own_addresses(&scene);
        for (v4, v6) in OWN {
            let web = at(v4, v6, 80, 53);
            for client in ["ext", "pod3", "node"] {
                check(&scene, client, &web, &["pod1/node", "podB1/node"]);
            }
        }
        // Without endpoints, only the Service's ports are refused.
        scene.program(services.clone().edit("web", |web| web.slices.clear()));
        daemons_are_reached_at_own_addresses(&scene);
        let (v4, v6) = OWN[0];
        check(&scene, "ext", &at(v4, v6, 80, 53), &["refused"]);

        // The node keeps its addresses when the Service is removed.
        scene.program(services.without("web"));
        daemons_are_reached_at_own_addresses(&scene);
        let listed = scene.client("node").exec(&["ip", "address", "show"]);
        for address in OWN.iter().flat_map(|(v4, v6)| [v4, v6]) {
            assert!(listed.contains(&format!("{address}/")), "{listed}");
        }
    });
}

/// Returns whether `address` answers one of three pings of `client`: a busy machine may stand still for longer
/// than one waits.
fn is_pinged(scene: &Scene, client: &str, address: &str) -> bool {
    (0..3).any(|_| pings(scene, client, address))
}

/// Returns whether `address` answers a ping of `client`.
fn pings(scene: &Scene, client: &str, address: &str) -> bool {
    let ping = || {
        Command::new("ping")
            .args(["-n", "-c", "1", "-W", "1", address])
            .output()
    };
    let output = scene.client(client).run(ping).expect("ping is installed");
    match output.status.code() {
        Some(0) => true,
        // No answer, or an ICMP error.
        Some(1) => false,
        _ => panic!("{client} to {address}: {output:?}"),
    }
}

/// A cluster IP, an external IP and a load-balancer IP of Services with endpoints, in both families.
const WITH_ENDPOINTS: [&str; 6] = [
    "10.96.1.1",
    "fd00:10:96::1",
    "198.51.100.1",
    "2001:db8:51::1",
    "198.51.100.4",
    "2001:db8:51::4",
];

/// A cluster IP and a load-balancer IP of a Service without endpoints, in both families.
const WITHOUT_ENDPOINTS: [&str; 4] = [
    "10.96.4.1",
    "fd00:10:96::4:1",
    "198.51.100.6",
    "2001:db8:51::6",
];

/// Whether service addresses with endpoints answer ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ping {
    Answered,
    Unanswered,
}

/// Configures ping, and asserts that service addresses with endpoints answer, or not, as `expected`.
fn assert_service_addresses_are_pinged(expected: Ping, form: ServiceAddresses) {
    lab::test(|| {
        let is_answered = expected == Ping::Answered;
        let scene = Scene::with(Services::dual(), form, |config| {
            config.answer_ping = is_answered;
        });
        for address in WITH_ENDPOINTS {
            for client in ["ext", "pod3"] {
                let answers = match is_answered {
                    true => is_pinged(&scene, client, address),
                    false => pings(&scene, client, address),
                };
                assert_eq!(answers, is_answered, "{client} to {address}");
            }
        }
        for address in WITHOUT_ENDPOINTS {
            assert!(!pings(&scene, "ext", address), "{address}");
        }
        for own in ["172.18.0.2", "fd00:172:18::2"] {
            assert!(is_pinged(&scene, "ext", own), "{own}");
        }
    });
}

#[test]
fn service_addresses_as_routes_answer_ping_if_configured() {
    assert_service_addresses_are_pinged(Ping::Answered, ServiceAddresses::Routes);
}

#[test]
fn service_addresses_on_a_device_answer_ping_if_configured() {
    assert_service_addresses_are_pinged(Ping::Answered, ServiceAddresses::Dummy);
}

#[test]
fn service_addresses_as_routes_answer_no_ping_by_default() {
    assert_service_addresses_are_pinged(Ping::Unanswered, ServiceAddresses::Routes);
}

#[test]
fn service_addresses_on_a_device_answer_no_ping_by_default() {
    assert_service_addresses_are_pinged(Ping::Unanswered, ServiceAddresses::Dummy);
}

/// Returns a Service whose ports have the numbers of node ports of Services web and local.
fn with_ports_like_node_ports() -> Service {
    Service::new("same", ["10.96.6.1", "fd00:10:96::6:1"])
        .external_policy(TrafficPolicy::Local)
        .load_balancer(["198.51.100.8", "2001:db8:51::8"])
        .ports(vec![
            Port::http("http", 30080),
            Port::dns("dns", 30053),
            Port::http("http2", 30081),
            Port::dns("dns2", 30054),
        ])
        .endpoints(&[POD2])
}

/// A node port exists only at the node's addresses, so it does not conflict with a port of a cluster IP.
#[test]
fn a_service_may_have_the_number_of_another_services_node_port_as_its_port() {
    lab::test(|| {
        let scene = Scene::new(Services::dual().with(with_ports_like_node_ports()));
        for (tcp, udp) in [(30080, 30053), (30081, 30054)] {
            let cluster_ip = at("10.96.6.1", "fd00:10:96::6:1", tcp, udp);
            check(&scene, "pod3", &cluster_ip, &["pod2/client"]);
            check(&scene, "ext", &cluster_ip, &["pod2/node"]);
            let balanced = at("198.51.100.8", "2001:db8:51::8", tcp, udp);
            for client in ["pod3", "ext"] {
                check(&scene, client, &balanced, &["pod2/client"]);
            }
            // Service web does not have these ports at its cluster IP.
            let others = at("10.96.1.1", "fd00:10:96::1", tcp, udp);
            check(&scene, "pod3", &others, &["refused"]);
        }
        let node_port = at("172.18.0.2", "fd00:172:18::2", 30080, 30053);
        check(&scene, "pod3", &node_port, &["pod1/node", "podB1/node"]);
    });
}

#[test]
fn masqueraded_tcp_and_udp_flows_have_no_node_port_as_their_source() {
    sources_are_no_node_ports("UDP");
}

#[test]
fn masqueraded_sctp_associations_have_no_node_port_as_their_source() {
    sources_are_no_node_ports("SCTP");
}

/// Asserts that masqueraded connections over TCP and `protocol` come from none of the node ports.
fn sources_are_no_node_ports(protocol: &'static str) {
    lab::test(|| {
        let services = Services::dual().instead_of_udp(protocol);
        let scene = Scene::with(services, ServiceAddresses::Routes, |config| {
            config.node_ports = 30_000..=65_000;
        });
        for pod in ["pod1", "podB1"] {
            scene.client(pod).serve_sctp(5353);
        }
        let ext = scene.client("ext");
        let idle: SocketAddr = "172.18.0.2:40000".parse().unwrap();
        assert_eq!(ext.ask_tcp(idle), Answer::Refused);
        for address in [
            "198.51.100.1",
            "2001:db8:51::1",
            "10.96.1.1",
            "fd00:10:96::1",
        ] {
            let address = address.parse().unwrap();
            for _ in 0..8 {
                let dns = SocketAddr::new(address, 53);
                let answers = [
                    ext.ask_tcp(SocketAddr::new(address, 80)),
                    match protocol {
                        "UDP" => ext.ask_udp(dns),
                        _ => ext.ask_sctp(dns),
                    },
                ];
                for answer in answers {
                    match answer {
                        Answer::Reply { source, .. } => {
                            assert!((1024..30_000).contains(&source.port()), "{source}");
                        }
                        other => panic!("{address}, TCP or {protocol}: {other}"),
                    }
                }
            }
        }
    });
}
