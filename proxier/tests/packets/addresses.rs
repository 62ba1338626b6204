//! Who is who: addresses of the node that are a Service's too, ports that are node ports elsewhere,
//! service addresses that are asked whether they are there.

use std::net::SocketAddr;
use std::process::Command;

use lab::net::Answer;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use crate::{DUAL, at, check};

/// The node's own as web's external IPs and as its load balancer's, in both families.
fn with_own_addresses() -> String {
    let manifests = DUAL
        .replacen(
            "externalIPs: [198.51.100.1, \"2001:db8:51::1\"]",
            "externalIPs: [172.18.0.2, \"fd00:172:18::2\"]",
            1,
        )
        .replacen(
            "ingress: [{ip: 198.51.100.2}, {ip: \"2001:db8:51::2\"}]",
            "ingress: [{ip: 203.0.113.1}, {ip: \"2001:db8:113::1\"}]",
            1,
        );
    assert!(manifests.contains("{ip: 203.0.113.1}") && manifests.contains("[172.18.0.2,"));
    manifests
}

const OWN: [(&str, &str); 2] = [
    ("172.18.0.2", "fd00:172:18::2"),
    ("203.0.113.1", "2001:db8:113::1"),
];

/// The node's own daemons are reached at its addresses, and what listens nowhere is refused by the
/// kernel itself, without regard to Services.
#[track_caller]
fn own_daemons_are_reached(scene: &Scene) {
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
fn own_addresses_that_services_have_too_are_never_filtered() {
    never_filtered(ServiceAddresses::Routes);
}

#[test]
fn own_addresses_are_never_filtered_where_services_have_a_device() {
    never_filtered(ServiceAddresses::Dummy);
}

fn never_filtered(form: ServiceAddresses) {
    lab::test(|| {
        let manifests = with_own_addresses();
        let mut scene = Scene::with(&manifests, form, |_| {});
        own_daemons_are_reached(&scene);
        for (v4, v6) in OWN {
            let web = at(v4, v6, 80, 53);
            for client in ["ext", "pod3", "node"] {
                check(&scene, client, &web, &["pod1/node", "podB1/node"]);
            }
        }
        // Without endpoints, only the Service's ports are refused.
        let without = manifests.replacen("metadata: {name: web-", "metadata: {name: other-", 2);
        let without = without.replacen("service-name: web}", "service-name: other}", 2);
        scene.program(&without);
        own_daemons_are_reached(&scene);
        let (v4, v6) = OWN[0];
        check(&scene, "ext", &at(v4, v6, 80, 53), &["refused"]);

        // The addresses do not go with the Service.
        let gone = manifests.replacen(
            "metadata: {name: web}",
            "metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: x}}",
            1,
        );
        assert_ne!(gone, manifests);
        scene.program(&gone);
        own_daemons_are_reached(&scene);
        let listed = scene.client("node").exec(&["ip", "address", "show"]);
        for address in OWN.iter().flat_map(|(v4, v6)| [v4, v6]) {
            assert!(listed.contains(&format!("{address}/")), "{listed}");
        }
    });
}

/// Whether `address` answers `client`'s ping, which asks nobody for names.
fn pings(scene: &Scene, client: &str, address: &str) -> bool {
    let ping = || {
        Command::new("ping")
            .args(["-n", "-c", "1", "-W", "1", address])
            .output()
    };
    let output = scene.client(client).run(ping).expect("ping is installed");
    match output.status.code() {
        Some(0) => true,
        // Its words for silence and for an ICMP error.
        Some(1) => false,
        _ => panic!("{client} to {address}: {output:?}"),
    }
}

/// Cluster IPs, external IPs and load balancers' addresses of Services with endpoints.
const WITH_ENDPOINTS: [&str; 6] = [
    "10.96.1.1",
    "fd00:10:96::1",
    "198.51.100.1",
    "2001:db8:51::1",
    "198.51.100.4",
    "2001:db8:51::4",
];

const WITHOUT_ENDPOINTS: [&str; 4] = [
    "10.96.4.1",
    "fd00:10:96::4:1",
    "198.51.100.6",
    "2001:db8:51::6",
];

fn answers_ping(form: ServiceAddresses, answer_ping: bool) {
    lab::test(|| {
        let scene = Scene::with(DUAL, form, |config| config.answer_ping = answer_ping);
        for address in WITH_ENDPOINTS {
            for client in ["ext", "pod3"] {
                let answers = pings(&scene, client, address);
                assert_eq!(answers, answer_ping, "{client} to {address}");
            }
        }
        for address in WITHOUT_ENDPOINTS {
            assert!(!pings(&scene, "ext", address), "{address}");
        }
        assert!(pings(&scene, "ext", "172.18.0.2") && pings(&scene, "ext", "fd00:172:18::2"));
    });
}

#[test]
fn service_addresses_with_endpoints_answer_ping_where_they_shall() {
    answers_ping(ServiceAddresses::Routes, true);
}

#[test]
fn service_addresses_of_a_device_answer_ping_where_they_shall() {
    answers_ping(ServiceAddresses::Dummy, true);
}

#[test]
fn no_service_address_answers_ping_by_itself() {
    answers_ping(ServiceAddresses::Routes, false);
}

#[test]
fn no_service_address_of_a_device_answers_ping_by_itself() {
    answers_ping(ServiceAddresses::Dummy, false);
}

/// Ports of Services that are node ports of another one: of web and, from inside by firewall mark, of
/// local.
const PORTS_OF_OTHERS: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: same}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  allocateLoadBalancerNodePorts: false
  clusterIP: 10.96.6.1
  clusterIPs: [10.96.6.1, "fd00:10:96::6:1"]
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: http, port: 30080, targetPort: 8080}
  - {name: dns, port: 30053, targetPort: 5353, protocol: UDP}
  - {name: http2, port: 30081, targetPort: 8080}
  - {name: dns2, port: 30054, targetPort: 5353, protocol: UDP}
status:
  loadBalancer:
    ingress: [{ip: 198.51.100.8}, {ip: "2001:db8:51::8"}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: same-4, labels: {kubernetes.io/service-name: same}}
addressType: IPv4
ports:
- {name: http, port: 8080}
- {name: http2, port: 8080}
- {name: dns, port: 5353, protocol: UDP}
- {name: dns2, port: 5353, protocol: UDP}
endpoints:
- {addresses: [10.244.1.3], nodeName: node-a}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: same-6, labels: {kubernetes.io/service-name: same}}
addressType: IPv6
ports:
- {name: http, port: 8080}
- {name: http2, port: 8080}
- {name: dns, port: 5353, protocol: UDP}
- {name: dns2, port: 5353, protocol: UDP}
endpoints:
- {addresses: ["fd00:244:1::3"], nodeName: node-a}
"#;

/// A node port is one at the node's addresses only.
#[test]
fn a_port_that_is_a_node_port_elsewhere_is_nothing_special() {
    lab::test(|| {
        let scene = Scene::conformance(&format!("{DUAL}{PORTS_OF_OTHERS}"));
        for (tcp, udp) in [(30080, 30053), (30081, 30054)] {
            let cluster_ip = at("10.96.6.1", "fd00:10:96::6:1", tcp, udp);
            check(&scene, "pod3", &cluster_ip, &["pod2/client"]);
            check(&scene, "ext", &cluster_ip, &["pod2/node"]);
            let balanced = at("198.51.100.8", "2001:db8:51::8", tcp, udp);
            for client in ["pod3", "ext"] {
                check(&scene, client, &balanced, &["pod2/client"]);
            }
            // At addresses of Services that do not have them they are nobody's.
            let others = at("10.96.1.1", "fd00:10:96::1", tcp, udp);
            check(&scene, "pod3", &others, &["refused"]);
        }
        let node_port = at("172.18.0.2", "fd00:172:18::2", 30080, 30053);
        check(&scene, "pod3", &node_port, &["pod1/node", "podB1/node"]);
    });
}

#[test]
fn masqueraded_connections_have_no_node_port_as_their_source() {
    sources_are_no_node_ports("UDP");
}

#[test]
fn masqueraded_associations_have_no_node_port_as_their_source() {
    sources_are_no_node_ports("SCTP");
}

/// Over TCP and `protocol`.
fn sources_are_no_node_ports(protocol: &str) {
    lab::test(|| {
        let manifests = DUAL.replace("protocol: UDP", &format!("protocol: {protocol}"));
        let scene = Scene::with(&manifests, ServiceAddresses::Routes, |config| {
            config.node_ports = 2_000..=65_000;
        });
        for pod in ["pod1", "podB1"] {
            scene.client(pod).serve_sctp(5353);
        }
        let ext = scene.client("ext");
        let idle: SocketAddr = "172.18.0.2:2000".parse().unwrap();
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
                            assert!((1024..2000).contains(&source.port()), "{source}");
                        }
                        other => panic!("{address}, TCP or {protocol}: {other}"),
                    }
                }
            }
        }
    });
}
