//! The Services of the cluster, and what each client must see at their frontends.

use std::net::{IpAddr, SocketAddr};

use lab::net::{Answer, Host};
use serde_json::{Value, json};

use super::scene::Scene;

/// The place of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Pod,
    Node,
    Outside,
}

impl Client {
    pub(crate) const ALL: [Self; 3] = [Self::Pod, Self::Node, Self::Outside];

    pub(crate) fn host(self, scene: &Scene) -> &Host {
        match self {
            Self::Pod => &scene.cluster.pod3,
            Self::Node => &scene.cluster.node,
            Self::Outside => &scene.cluster.ext,
        }
    }
}

/// The clients and the endpoints of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// All clients, by all endpoints.
    Cluster,
    /// `externalTrafficPolicy: Local`: clients outside, by the node's own endpoint and with their own source
    /// address.
    Local,
    /// `loadBalancerSourceRanges`: only the client outside, and not [`stranger`].
    SourceRanges,
}

/// An address that clients use, over TCP and over UDP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frontend {
    pub(crate) tcp: SocketAddr,
    pub(crate) udp: SocketAddr,
    policy: Policy,
}

/// The kind of a Service's address that clients use.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Cluster,
    NodePort,
    External,
    LoadBalancer(Policy),
}

impl Kind {
    fn policy(self) -> Policy {
        match self {
            Self::LoadBalancer(policy) => policy,
            _ => Policy::Cluster,
        }
    }
}

type ServiceRow = ([&'static str; 2], [u16; 2], Kind);

/// The address of each Service that clients use, of each family, and its ports of TCP and UDP.
///
/// Each kind of address belongs to another Service: IPVS finds the connection of an answer by client and
/// endpoint, so two connections from one port of a client to one port of an endpoint, through two
/// frontends, are mixed up. A Service has no other address but its cluster IPs: kube-proxy starts a process
/// for each entry of its ipsets, which takes most of the time of these tests.
const SERVICES: [ServiceRow; 6] = [
    (["10.96.2.1", "fd00:10:96::2:1"], [80, 53], Kind::Cluster),
    (
        ["172.18.0.2", "fd00:172:18::2"],
        [30_081, 30_051],
        Kind::NodePort,
    ),
    (
        ["198.51.100.22", "2001:db8:100::22"],
        [80, 53],
        Kind::External,
    ),
    (
        ["198.51.100.33", "2001:db8:100::33"],
        [80, 53],
        Kind::LoadBalancer(Policy::Cluster),
    ),
    (
        ["198.51.100.34", "2001:db8:100::34"],
        [80, 53],
        Kind::LoadBalancer(Policy::Local),
    ),
    (
        ["198.51.100.35", "2001:db8:100::35"],
        [80, 53],
        Kind::LoadBalancer(Policy::SourceRanges),
    ),
];

/// The source ranges, which permit the client outside.
const RANGES: [&str; 2] = ["203.0.113.0/24", "2001:db8:113::/64"];

/// The addresses of the client outside.
const OUTSIDE: [&str; 2] = ["203.0.113.9", "2001:db8:113::9"];

/// Returns the client whom no source range permits.
pub(crate) fn stranger(scene: &Scene) -> &Host {
    &scene.cluster.ext2
}

/// Returns the ports of all endpoints: Service `n` has the target port `7000 + n`.
pub(crate) fn target_ports() -> impl Iterator<Item = u16> {
    // The last is that of `late`.
    (7_000..).take(SERVICES.len() + 1)
}

fn frontends() -> impl Iterator<Item = Frontend> {
    SERVICES
        .into_iter()
        .flat_map(|(addresses, [tcp, udp], kind)| {
            addresses.map(|address| {
                let address: IpAddr = address.parse().unwrap();
                Frontend {
                    tcp: (address, tcp).into(),
                    udp: (address, udp).into(),
                    policy: kind.policy(),
                }
            })
        })
}

/// Returns each client with each frontend that serves it, client by client.
pub(crate) fn served() -> impl Iterator<Item = (Client, Frontend)> {
    let pairs = |client| frontends().map(move |frontend| (client, frontend));
    let all = Client::ALL.into_iter().flat_map(pairs);
    all.filter(|(client, frontend)| {
        frontend.policy != Policy::SourceRanges || *client == Client::Outside
    })
}

/// Returns the frontends that must refuse [`stranger`].
pub(crate) fn restricted() -> impl Iterator<Item = Frontend> {
    frontends().filter(|frontend| frontend.policy == Policy::SourceRanges)
}

impl Frontend {
    /// Returns whether the frontend's rules permit that `client` gets this answer.
    pub(crate) fn permits(self, client: Client, answer: &Answer) -> bool {
        match (self.policy, client) {
            (Policy::Local, Client::Outside) => {
                answer.backend() == Some("pod1") && has_source(answer, &OUTSIDE)
            }
            _ => answer.backend().is_some(),
        }
    }

    /// Returns whether this answer proves that the service proxy has all its rules for this
    /// frontend.
    pub(crate) fn is_complete(self, client: Client, answer: &Answer) -> bool {
        let is_masqueraded = self.policy == Policy::Cluster && client == Client::Outside;
        self.permits(client, answer)
            && (!is_masqueraded || has_source(answer, &lab::net::Cluster::NODE_ADDRESSES))
    }
}

fn has_source(answer: &Answer, addresses: &[&str]) -> bool {
    let source = answer.source();
    source.is_some_and(|source| addresses.contains(&&*source.to_string()))
}

/// Returns all objects of the cluster.
pub(crate) fn objects() -> Vec<Value> {
    let cluster = [
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "172.18.0.2"},
                {"type": "InternalIP", "address": "fd00:172:18::2"},
            ]},
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
        }),
    ];
    let services = target_ports().zip(SERVICES).enumerate().flat_map(service);
    cluster.into_iter().chain(services).collect()
}

/// The address of the Service of [`late`].
pub(crate) const LATE: &str = "10.96.2.7:80";

/// Returns another Service and its endpoints.
pub(crate) fn late() -> [Value; 3] {
    let number = SERVICES.len();
    let target_port = target_ports().nth(number).unwrap();
    service((number, (target_port, SERVICES[0])))
}

/// Returns a Service with its endpoints on both nodes.
fn service((number, (target_port, row)): (usize, (u16, ServiceRow))) -> [Value; 3] {
    let (addresses, [tcp, udp], kind) = row;
    let name = format!("web{number}");
    let (v4, v6) = (
        format!("10.96.2.{}", number + 1),
        format!("fd00:10:96::2:{}", number + 1),
    );
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": v4, "clusterIPs": [v4, v6],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [
                {"name": "http", "port": 80, "targetPort": target_port, "protocol": "TCP"},
                {"name": "dns", "port": 53, "targetPort": target_port, "protocol": "UDP"},
            ],
        },
    });
    let spec = &mut service["spec"];
    match kind {
        Kind::Cluster => {}
        Kind::NodePort => {
            spec["type"] = json!("NodePort");
            spec["ports"][0]["nodePort"] = json!(tcp);
            spec["ports"][1]["nodePort"] = json!(udp);
        }
        Kind::External => spec["externalIPs"] = json!(addresses),
        Kind::LoadBalancer(policy) => {
            spec["type"] = json!("LoadBalancer");
            spec["allocateLoadBalancerNodePorts"] = json!(false);
            match policy {
                Policy::Cluster => {}
                Policy::Local => {
                    spec["externalTrafficPolicy"] = json!("Local");
                    spec["healthCheckNodePort"] = json!(30_090);
                }
                Policy::SourceRanges => spec["loadBalancerSourceRanges"] = json!(RANGES),
            }
            let ingress = addresses.map(|address| json!({"ip": address, "ipMode": "VIP"}));
            service["status"] = json!({"loadBalancer": {"ingress": ingress}});
        }
    }
    let slice = |family: &str, [here, there]: [&str; 2]| {
        let endpoint = |address: &str, node: &str| json!({"addresses": [address], "nodeName": node, "conditions": {"ready": true}});
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default", "name": format!("{name}-{}", family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": family,
            "ports": [
                {"name": "http", "port": target_port, "protocol": "TCP"},
                {"name": "dns", "port": target_port, "protocol": "UDP"},
            ],
            "endpoints": [endpoint(here, "node-a"), endpoint(there, "node-b")],
        })
    };
    [
        slice("IPv4", ["10.244.1.2", "10.244.2.2"]),
        slice("IPv6", ["fd00:244:1::2", "fd00:244:2::2"]),
        service,
    ]
}
