//! Errors that endpoints and routers send find their way back to the client, through IPVS and
//! masquerade.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::scene::Scene;
use crate::{DUAL, at, check};

/// Endpoints on which nothing listens: a client hears of it as if it had asked them.
#[test]
fn an_endpoints_refusal_is_heard() {
    lab::test(|| {
        let deaf = DUAL.replace("5353", "7777");
        assert_ne!(deaf, DUAL);
        let scene = Scene::conformance(&deaf);
        for pod in ["pod1", "pod2", "podB1"] {
            // More errors to one host than six in a few seconds.
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
                // Endpoints take turns: both of them.
                for _ in 0..2 {
                    check(&scene, client, &[udp.clone(), udp6.clone()], &["refused"]);
                }
            }
        }
    });
}

/// Sends a line that takes several full packets, and waits for the answer to it.
fn upload(scene: &Scene, client: &str, to: &str) -> Result<String, String> {
    let to: SocketAddr = to.parse().unwrap();
    scene.client(client).run(|| {
        let talk = || -> std::io::Result<String> {
            let stream = TcpStream::connect(to)?;
            // Far less than TCP needs to find out by itself that large packets do not arrive.
            stream.set_read_timeout(Some(Duration::from_secs(3)))?;
            let mut stream = BufReader::new(stream);
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

/// Links to endpoints are narrower than the client's, and none of the two ends sees it: `veth-pod1`
/// of this node, where IPVS itself has to say so, and `veth-podB1` of the other one.
#[test]
fn large_packets_are_told_to_be_smaller() {
    lab::test(|| {
        let scene = Scene::conformance(DUAL);
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
            for client in ["pod3", "ext", "node"] {
                // For an address of a device of its own a host remembers no path MTU
                // (`__mkroute_output` of Linux 7.2: routes to it are not cached). Service addresses
                // are on `lo`, for which that does not hold; and IPv6 does not know it.
                if (client, to) == ("node", "172.18.0.2:30080") {
                    continue;
                }
                // One of them to each endpoint.
                let mut answers = [(); 2].map(|()| upload(&scene, client, to));
                answers.sort();
                let expected = ["pod1", "podB1"].map(|pod| Ok(pod.to_owned()));
                assert_eq!(answers, expected, "{client} to {to}");
            }
        }
    });
}
