//! UDP flows without answers, such as those of a log, while the node moves from one dataplane to the other.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::Duration;

use lab::net::{Cluster, Host};
use serde_json::{Value, json};

use super::AT_ONCE;
use super::daemon::Daemon;

const CLUSTER_IP: &str = "10.96.1.2:514";
const LOAD_BALANCER: &str = "198.51.100.2:514";

/// The port of the endpoints, which do not answer.
const TARGET: u16 = 7_514;

/// Sockets that send and never receive.
struct Senders<'a> {
    sockets: Vec<(&'a Host, UdpSocket)>,
    sent: u64,
}

impl<'a> Senders<'a> {
    fn open(cluster: &'a Cluster) -> Self {
        let all: [(&Host, &str); 3] = [
            (&cluster.pod3, CLUSTER_IP),
            (&cluster.node, CLUSTER_IP),
            (&cluster.ext, LOAD_BALANCER),
        ];
        let open = |(host, to): (&'a Host, &str)| {
            let open = || {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(to).unwrap();
                socket
            };
            (host, host.run(open))
        };
        Self {
            sockets: all.map(open).into(),
            sent: 0,
        }
    }

    /// Sends a datagram with the next number from each socket.
    fn send(&mut self) {
        for (host, socket) in &self.sockets {
            let text = format!("{} {}", host.name(), self.sent);
            // Refused at once on the node, if a rule drops it.
            let _ = socket.send(text.as_bytes());
        }
        self.sent += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The endpoints, and what each received.
struct Sinks(Vec<(&'static str, UdpSocket)>);

impl Sinks {
    fn open(cluster: &Cluster) -> Self {
        let pods = [
            ("pod1", &cluster.pod1),
            ("pod2", &cluster.pod2),
            ("podB1", &cluster.pod_b1),
        ];
        let open = |(name, pod): (&'static str, &Host)| {
            let socket = pod.run(|| UdpSocket::bind(("0.0.0.0", TARGET)).unwrap());
            socket.set_nonblocking(true).unwrap();
            // The default has room for about 280 datagrams, fewer than are sent during a move on a busy machine.
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
            (name, socket)
        };
        Self(pods.map(open).into())
    }

    /// Returns the endpoint of each datagram that arrived since the last call.
    fn received(&self) -> BTreeMap<(String, u64), &'static str> {
        // Datagrams on their way.
        std::thread::sleep(lab::patience(Duration::from_millis(200)));
        let mut received = BTreeMap::new();
        for (pod, socket) in &self.0 {
            let mut bytes = [0; 64];
            while let Ok(length) = socket.recv(&mut bytes) {
                let text = std::str::from_utf8(&bytes[..length]).unwrap();
                let (sender, number) = text.split_once(' ').unwrap();
                let key = (sender.to_owned(), number.parse().unwrap());
                assert_eq!(received.insert(key, *pod), None, "twice: {text}");
            }
        }
        received
    }

    /// Asserts that all datagrams from number `first` on arrived, those of each sender at one endpoint. Returns these.
    #[track_caller]
    fn all_from(
        &self,
        first: u64,
        senders: &Senders<'_>,
        when: &str,
    ) -> BTreeMap<String, &'static str> {
        let received = self.received();
        let mut endpoints = BTreeMap::new();
        for (host, _) in &senders.sockets {
            for number in first..senders.sent {
                let pod = received.get(&(host.name().to_owned(), number));
                let pod = pod.unwrap_or_else(|| panic!("{when}: {} lost {number}", host.name()));
                let before = endpoints.insert(host.name().to_owned(), *pod);
                assert!(
                    before.is_none_or(|before| before == *pod),
                    "{when}: {before:?}, {pod}"
                );
            }
        }
        endpoints
    }
}

/// Returns Service `log` and its endpoints.
fn objects() -> [Value; 2] {
    let port = json!({"name": "log", "port": TARGET, "protocol": "UDP"});
    let endpoint = |address: &str, node: &str| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}});
    [
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": "log"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.1.2", "clusterIPs": ["10.96.1.2"],
                "ipFamilies": ["IPv4"],
                "ports": [{"name": "log", "port": 514, "targetPort": TARGET, "protocol": "UDP"}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.2"}]}},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": "log-1",
                "labels": {"kubernetes.io/service-name": "log"},
            },
            "addressType": "IPv4",
            "ports": [port],
            "endpoints": [
                endpoint("10.244.1.2", "node-a"),
                endpoint("10.244.1.3", "node-a"),
                endpoint("10.244.2.2", "node-b"),
            ],
        }),
    ]
}

/// Starts the daemon with a dataplane while the senders send.
fn start(daemon: &mut Daemon, flags: &[&str], dataplane: &str, senders: &mut Senders<'_>) {
    daemon.set_flags(&[flags, &["--dataplane", dataplane]].concat());
    let rounds = daemon.log().matches("synced").count();
    daemon.start();
    daemon.eventually(dataplane, || {
        senders.send();
        daemon.log().matches("synced").count() > rounds
    });
    for _ in 0..50 {
        senders.send();
    }
}

#[test]
fn flows_without_answers_keep_their_endpoint_during_a_move() {
    lab::test(|| {
        let cluster = Cluster::conformance();
        let route = "ip route add default via 172.18.0.1 src 172.18.0.2";
        cluster.node.exec(&route.split(' ').collect::<Vec<_>>());
        let rest = [
            "--cluster-cidr=10.244.0.0/16",
            "--ipvs-sync-period=1s",
            "--drain-timeout=5s",
        ];
        let flags = [&AT_ONCE[..], &rest].concat();
        let mut daemon = Daemon::bare(&flags);
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
            "status": {"addresses": [{"type": "InternalIP", "address": "172.18.0.2"}]},
        });
        for object in objects().into_iter().chain([node]) {
            daemon.api.apply(object);
        }
        let (sinks, mut senders) = (Sinks::open(&cluster), Senders::open(&cluster));
        daemon.set_flags(&[&flags[..], &["--dataplane=ipvs"]].concat());
        daemon.start();
        daemon.eventually("IPVS serves", || {
            senders.send();
            sinks.received().len() == senders.sockets.len()
        });
        let first = senders.sent;
        for _ in 0..20 {
            senders.send();
        }
        let by_ipvs = sinks.all_from(first, &senders, "with IPVS");

        daemon.terminate();
        let first = senders.sent;
        start(&mut daemon, &flags, "nftables", &mut senders);
        let moved = sinks.all_from(first, &senders, "during the move to nftables");
        assert_eq!(moved, by_ipvs);
        // The flows never end, so their virtual server stays for the drain time.
        daemon.eventually("nothing of IPVS is left", || {
            senders.send();
            daemon
                .log()
                .contains("nothing of the dataplane ipvs is left")
        });
        sinks.received();
        let first = senders.sent;
        for _ in 0..50 {
            senders.send();
        }
        let by_nftables = sinks.all_from(first, &senders, "with nftables alone");

        daemon.terminate();
        let first = senders.sent;
        start(&mut daemon, &flags, "ipvs", &mut senders);
        daemon.eventually("nothing of nftables is left", || {
            senders.send();
            daemon
                .log()
                .contains("nothing of the dataplane nftables is left")
        });
        for _ in 0..50 {
            senders.send();
        }
        let back = sinks.all_from(first, &senders, "during the move to IPVS");
        assert_eq!(back, by_nftables);
    });
}
