//! The network of the conformance tests; kube-proxy was observed in the same network.

use super::{Host, Node, node};

/// A cluster with two nodes and two clients outside.
///
/// ```text
///   ext  203.0.113.9 ────────── 203.0.113.1 ┐          ┌ veth ── pod1  10.244.1.2
///        2001:db8:113::9    2001:db8:113::1 │          │               fd00:244:1::2
///                                           ├─ node-a ─┼ veth ── pod2  .3
///   ext2 192.0.2.9 ──────────── 192.0.2.1   │          └ veth ── pod3  .4
///        2001:db8:2::9      2001:db8:2::1   ┘  node0
///                                              172.18.0.2, fd00:172:18::2
///                                              │
///                                              172.18.0.3, fd00:172:18::3
///                                             peer ──┬ veth ── podB1 10.244.2.2
///                                                    │               fd00:244:2::2
///                                                    └ veth ── podB2 10.244.2.3
/// ```
#[derive(Debug)]
pub struct Cluster {
    /// The node under test: the namespace of the thread that made the cluster.
    pub node: Node,
    /// A pod on the node.
    pub pod1: Host,
    /// A pod on the node.
    pub pod2: Host,
    /// A pod on the node.
    pub pod3: Host,
    /// The other node.
    pub peer: Node,
    /// A pod on the other node.
    pub pod_b1: Host,
    /// A pod on the other node, with IPv4 only.
    pub pod_b2: Host,
    /// A client outside the cluster.
    pub ext: Node,
    /// Another client outside the cluster.
    pub ext2: Node,
}

impl Cluster {
    /// Returns the cluster of `conformance/`, with its servers.
    ///
    /// Every pod answers on [`TCP_PORTS`](Self::TCP_PORTS) and [`UDP_PORTS`](Self::UDP_PORTS). The
    /// node answers as `HOST` on TCP [`HOST_PORTS`](Self::HOST_PORTS) and has no service addresses
    /// yet.
    ///
    /// # Panics
    ///
    /// If `ip` fails, with its output.
    #[track_caller]
    pub fn conformance() -> Self {
        let mut node = node("node-a");
        let peer = node.link(
            "node0",
            "172.18.0.2/24 fd00:172:18::2/64",
            "peer",
            "172.18.0.3/24 fd00:172:18::3/64",
        );
        let ext = node.link(
            "ext0",
            "203.0.113.1/24 2001:db8:113::1/64",
            "ext",
            "203.0.113.9/24 2001:db8:113::9/64",
        );
        let ext2 = node.link(
            "ext1",
            "192.0.2.1/24 2001:db8:2::1/64",
            "ext2",
            "192.0.2.9/24 2001:db8:2::9/64",
        );
        let cluster = Self {
            pod1: node.pod("pod1", "10.244.1.2 fd00:244:1::2"),
            pod2: node.pod("pod2", "10.244.1.3 fd00:244:1::3"),
            pod3: node.pod("pod3", "10.244.1.4 fd00:244:1::4"),
            pod_b1: peer.pod("podB1", "10.244.2.2 fd00:244:2::2"),
            pod_b2: peer.pod("podB2", "10.244.2.3"),
            node,
            peer,
            ext,
            ext2,
        };
        for pod in cluster.pods() {
            for port in Self::TCP_PORTS {
                pod.serve_tcp(port);
            }
            for port in Self::UDP_PORTS {
                pod.serve_udp(port);
            }
        }
        for port in Self::HOST_PORTS {
            cluster.node.serve_tcp_as("HOST", port);
        }
        cluster
    }

    /// The addresses of `node`; a masqueraded connection has one of them as its source.
    pub const NODE_ADDRESSES: [&str; 6] = [
        "172.18.0.2",
        "203.0.113.1",
        "192.0.2.1",
        "fd00:172:18::2",
        "2001:db8:113::1",
        "2001:db8:2::1",
    ];

    /// The TCP ports of every pod.
    pub const TCP_PORTS: [u16; 6] = [3000, 5353, 8080, 8081, 8443, 9376];

    /// The UDP ports of every pod.
    pub const UDP_PORTS: [u16; 3] = [5353, 8080, 9053];

    /// The TCP ports of the node itself, which answers as `HOST`.
    pub const HOST_PORTS: [u16; 2] = [22, 9999];

    /// Returns all pods of both nodes.
    pub fn pods(&self) -> [&Host; 5] {
        [
            &self.pod1,
            &self.pod2,
            &self.pod3,
            &self.pod_b1,
            &self.pod_b2,
        ]
    }
}
