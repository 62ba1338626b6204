//! ICMP errors of endpoints and routers reach the client through IPVS and masquerade.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::time::Duration;

use lab::net::PatientStream;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::Services;
use crate::{at, check};

/// How long a client waits. Without ICMP errors, TCP needs far longer to notice that large packets are lost.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn port_unreachable_of_an_endpoint_reaches_the_client() {
    lab::test(|| {
        // No server listens on this port.
        let scene = Scene::new(Services::dual().with_dns_target(7777));
        for pod in ["pod1", "pod2", "podB1"] {
            // By default, the kernel sends six errors to a host at once, and then one a second.
            let unlimited = "echo 0 | tee /proc/sys/net/ipv4/icmp_ratelimit \
                             /proc/sys/net/ipv6/icmp/ratelimit";
            scene.client(pod).exec(&["/bin/sh", "-c", unlimited]);
        }
        for frontends in [
            at("10.96.1.1", "fd00:10:96::1", 80, 53),
            at("198.51.100.1", "2001:db8:51::1", 80, 53),
            at("172.18.0.2", "fd00:172:18::2", 30080, 30053),
            at("198.51.100.4", "2001:db8:51::4", 80, 53),
        ] {
            let [_, udp, _, udp6] = frontends;
            for client in ["pod3", "ext", "node"] {
                // Endpoints take turns, so two requests reach both.
                for _ in 0..2 {
                    check(&scene, client, &[udp.clone(), udp6.clone()], &["refused"]);
                }
            }
        }
    });
}

/// Sends a line of several full packets. Returns the Pod that answers.
fn upload(scene: &Scene, client: &str, to: &str) -> Result<String, String> {
    let to: SocketAddr = to.parse().unwrap();
    scene.client(client).run(|| {
        let talk = || -> std::io::Result<String> {
            let mut stream = BufReader::new(PatientStream::connect(to, PATIENCE)?);
            let mut name = String::new();
            stream.read_line(&mut name)?;
            let mut line = vec![b'x'; 20_000];
            line.push(b'\n');
            stream.get_mut().write_all(&line)?;
            name.clear();
            stream.read_line(&mut name)?;
            Ok(name.split(' ').next().unwrap_or_default().to_owned())
        };
        talk().map_err(|error| format!("{client} to {to}: {error}"))
    })
}

/// The narrow links are in the middle of the path, so neither end knows their MTU: `veth-pod1` of this
/// node, where IPVS itself sends the ICMP error, and `veth-podB1` of the other node.
#[test]
fn packet_too_big_of_a_router_reaches_the_client() {
    packet_too_big_reaches_clients(ServiceAddresses::Routes, &["pod3", "ext", "node"]);
}

#[test]
fn packet_too_big_reaches_the_node_if_addresses_are_on_the_loopback_device() {
    packet_too_big_reaches_clients(ServiceAddresses::Loopback, &["pod3", "ext", "node"]);
}

fn packet_too_big_reaches_clients(form: ServiceAddresses, clients: &'static [&'static str]) {
    lab::test(move || {
        let scene = Scene::with(Services::dual(), form, |_| {});
        for (node, device) in [("node", "veth-pod1"), ("peer", "veth-podB1")] {
            let narrow = ["ip", "link", "set", device, "mtu", "1400"];
            scene.client(node).exec(&narrow);
        }
        for to in [
            "10.96.1.1:80",
            "[fd00:10:96::1]:80",
            "198.51.100.2:80",
            "[2001:db8:51::2]:80",
            "172.18.0.2:30080",
            "[fd00:172:18::2]:30080",
        ] {
            for &client in clients {
                // A node port is at an address of the node's interface, never at one on `lo`.
                if (client, to) == ("node", "172.18.0.2:30080") {
                    continue;
                }
                // Endpoints take turns.
                let mut answers = [(); 2].map(|()| upload(&scene, client, to));
                answers.sort();
                let expected = ["pod1", "podB1"].map(|pod| Ok(pod.to_owned()));
                assert_eq!(answers, expected, "{client} to {to}");
            }
        }
    });
}
