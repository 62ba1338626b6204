//! Processes of the node whose packets do not fit the way to an endpoint.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use lab::net::PatientStream;
use proxier::testing::clock;
use proxier::testing::plan::ServiceAddresses;

use super::scene::Scene;
use super::services::Services;

const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster IP and a load-balancer address.
const FRONTENDS: [&str; 2] = ["10.96.1.1", "198.51.100.2"];

/// Makes the links to both endpoints narrow: one on this node, and one behind the other node, which routes.
fn narrow(scene: &Scene) {
    for (node, device) in [("node", "veth-pod1"), ("peer", "veth-podB1")] {
        let narrow = ["ip", "link", "set", device, "mtu", "1280"];
        scene.client(node).exec(&narrow);
    }
}

/// Sends a datagram of 4,000 bytes from the node, and returns the Pod that answers.
fn send_datagram(scene: &Scene, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = format!("{to}:53").parse().unwrap();
    scene.client("node").run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(to)?;
        socket.send(&[b'x'; 4_000])?;
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer)?;
        Ok(first_word(&String::from_utf8_lossy(&answer[..length])))
    })
}

/// Sends a line of 100 kB from the node over TCP, and returns the Pod that answers.
fn send_line(scene: &Scene, to: &str) -> std::io::Result<String> {
    let to: SocketAddr = format!("{to}:80").parse().unwrap();
    scene.client("node").run(|| {
        let mut stream = BufReader::new(PatientStream::connect(to, PATIENCE)?);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let mut upload = vec![b'x'; 100_000];
        upload.push(b'\n');
        stream.get_mut().write_all(&upload)?;
        line.clear();
        stream.read_line(&mut line)?;
        Ok(first_word(&line))
    })
}

fn first_word(answer: &str) -> String {
    answer.split(' ').next().unwrap_or_default().to_owned()
}

fn large_packets_reach_both_endpoints(form: ServiceAddresses) {
    lab::test(move || {
        let scene = Scene::with(Services::dual(), form, |_| {});
        // The datagrams fit no link. They must pass before the kernel learns any path MTU, and after.
        for has_narrow_links in [false, true] {
            if has_narrow_links {
                narrow(&scene);
            }
            for to in FRONTENDS {
                for send in [send_datagram, send_line] {
                    // Endpoints take turns.
                    let mut answers = [(); 2].map(|()| send(&scene, to).unwrap());
                    answers.sort();
                    assert_eq!(answers, ["pod1", "podB1"], "{to}, {has_narrow_links}");
                }
            }
        }
    });
}

#[test]
fn large_packets_of_the_node_reach_endpoints_with_routes() {
    large_packets_reach_both_endpoints(ServiceAddresses::Routes);
}

#[test]
fn large_packets_of_the_node_reach_endpoints_with_routes_on_the_loopback_device() {
    large_packets_reach_both_endpoints(ServiceAddresses::Loopback);
}

#[test]
fn ipv4_routes_have_the_smallest_mtu_of_the_links() {
    lab::test(|| {
        let mut scene = Scene::new(Services::dual());
        let show = "ip route show table local proto 73; ip -6 route show table local proto 73";
        let routes = |scene: &Scene, mtu: &str| {
            let listed = scene.client("node").exec(&["/bin/sh", "-c", show]);
            let (v6, v4): (Vec<_>, Vec<_>) = listed.lines().partition(|line| line.contains("::"));
            assert!(!v4.is_empty() && !v6.is_empty(), "{listed}");
            assert!(v4.iter().all(|line| line.contains(mtu)), "{listed}");
            assert!(!v6.iter().any(|line| line.contains("lock")), "{listed}");
        };
        routes(&scene, "mtu lock 1500");

        // As an earlier version wrote it.
        let earlier = "ip route replace local 10.96.1.1 dev kube-ipvs0 table local proto 73 metric 73 \
                       scope host src 172.18.0.2";
        scene.client("node").exec(&["/bin/sh", "-c", earlier]);
        for (command, mtu) in [
            ("true", "mtu lock 1500"),
            ("ip link set veth-pod1 mtu 1400", "mtu lock 1400"),
            ("ip link set veth-pod1 mtu 1000", "mtu lock 1280"),
            ("ip link set veth-pod1 mtu 9000", "mtu lock 1500"),
        ] {
            scene.client("node").exec(&["/bin/sh", "-c", command]);
            let applied = scene.proxier.resync(clock::since_boot()).unwrap();
            assert_eq!(applied.failures().count(), 0, "{command}");
            assert!(applied.changes.drifted.addresses.is_empty(), "{command}");
            routes(&scene, mtu);
            let again = scene.proxier.resync(clock::since_boot()).unwrap();
            assert_eq!(again.changes.ops.len(), 0, "{command}");
        }
    });
}
