//! API objects of a generated cluster, with the fields that a real API server sends.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::{
    LoadBalancerStatus, Node, NodeAddress, NodeSpec, NodeStatus, ObjectReference, Service,
    ServicePort, ServiceSpec, ServiceStatus,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ManagedFieldsEntry, ObjectMeta, OwnerReference, Time,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

/// The node of the measured proxy.
pub(crate) const NODE: &str = "node-17";

/// The number of nodes that run Pods.
const NODES: u32 = 1_000;

/// The number of Services in a namespace.
const PER_NAMESPACE: u32 = 100;

/// The most endpoints of a slice, as Kubernetes' controller fills them.
pub(crate) const PER_SLICE: usize = 100;

/// The port of each Service, and that of its Pods.
pub(crate) const PORT: u16 = 80;
pub(crate) const TARGET_PORT: u16 = 8_080;

/// When all objects were created: the beginning of 2026.
const CREATED: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the range of cluster IPs.
    pub(crate) fn service_range(self) -> &'static str {
        match self {
            Self::V4 => "10.96.0.0/12",
            Self::V6 => "fd00:10:96::/108",
        }
    }

    /// Returns the first address of the range, that of `default/kubernetes`.
    pub(crate) fn first_service_ip(self) -> IpAddr {
        self.service_ip(1)
    }

    /// Returns the cluster IP of Service `number`.
    pub(crate) fn cluster_ip(self, number: u32) -> IpAddr {
        self.service_ip(number + 2)
    }

    fn service_ip(self, host: u32) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(0x0a60_0000 + host).into(),
            Self::V6 => ipv6(0x96, host),
        }
    }

    /// Returns the last four bytes of the address of Pod `pod`.
    ///
    /// They are unique among the Pods of both families: 10.128.0.0/9 and fd00:10:128::b80:0/105.
    pub(crate) fn pod_word(self, pod: u32) -> u32 {
        match self {
            Self::V4 => 0x0a80_0000 + pod + 1,
            Self::V6 => 0x0b80_0000 + pod + 1,
        }
    }

    /// Returns the address of Pod `pod`.
    pub(crate) fn pod_address(self, pod: u32) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(self.pod_word(pod)).into(),
            Self::V6 => ipv6(0x128, self.pod_word(pod)),
        }
    }
}

fn ipv6(subnet: u16, host: u32) -> IpAddr {
    let prefix = Ipv6Addr::new(0xfd00, 0x10, subnet, 0, 0, 0, 0, 0);
    Ipv6Addr::from(prefix.to_bits() | u128::from(host)).into()
}

/// Returns Service number `number`.
pub(crate) fn service(number: u32, families: &[Family], node_port: Option<u16>) -> Service {
    let name = name(number);
    let labels = BTreeMap::from([("app.kubernetes.io/name".to_owned(), name.clone())]);
    let ips: Vec<IpAddr> = families.iter().map(|it| it.cluster_ip(number)).collect();
    let (policy, kind) = (
        if ips.len() > 1 {
            "RequireDualStack"
        } else {
            "SingleStack"
        },
        if node_port.is_some() {
            "NodePort"
        } else {
            "ClusterIP"
        },
    );
    let spec = service_spec(&ips, "http", PORT.into(), TARGET_PORT.into());
    let port = |port| ServicePort {
        node_port: node_port.map(i32::from),
        ..port
    };
    Service {
        metadata: ObjectMeta {
            labels: Some(labels.clone()),
            managed_fields: managed_fields("kubectl", "f:spec"),
            ..metadata(number, name, 1)
        },
        spec: Some(ServiceSpec {
            type_: Some(kind.into()),
            ip_family_policy: Some(policy.into()),
            external_traffic_policy: node_port.map(|_| "Cluster".into()),
            selector: Some(labels),
            ports: spec
                .ports
                .map(|ports| ports.into_iter().map(port).collect()),
            ..spec
        }),
        status: Some(ServiceStatus {
            load_balancer: Some(LoadBalancerStatus::default()),
            ..ServiceStatus::default()
        }),
    }
}

/// Returns the `spec` of a Service with these cluster IPs and one port.
pub(crate) fn service_spec(ips: &[IpAddr], name: &str, port: i32, target: i32) -> ServiceSpec {
    let texts = ips.iter().map(IpAddr::to_string).collect();
    let families = ips
        .iter()
        .map(|&ip| Family::of(ip).name().to_owned())
        .collect();
    ServiceSpec {
        type_: Some("ClusterIP".into()),
        cluster_ip: ips.first().map(IpAddr::to_string),
        cluster_ips: Some(texts),
        ip_families: Some(families),
        internal_traffic_policy: Some("Cluster".into()),
        session_affinity: Some("None".into()),
        ports: Some(vec![ServicePort {
            name: Some(name.into()),
            protocol: Some("TCP".into()),
            port,
            target_port: Some(IntOrString::Int(target)),
            ..ServicePort::default()
        }]),
        ..ServiceSpec::default()
    }
}

/// Returns the EndpointSlice called `slice` of Service `number` with these Pods.
pub(crate) fn slice(number: u32, slice: &str, family: Family, pods: &[u32]) -> EndpointSlice {
    let name = name(number);
    let labels = [
        ("app.kubernetes.io/name", &*name),
        (
            "endpointslice.kubernetes.io/managed-by",
            "endpointslice-controller.k8s.io",
        ),
        ("kubernetes.io/service-name", &*name),
    ];
    let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
    let endpoints = pods.iter().map(|&pod| endpoint(number, family, pod));
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            labels: Some(labels.into()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Service".into(),
                name,
                uid: uid(1, number),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            managed_fields: managed_fields("kube-controller-manager", "f:endpoints"),
            ..metadata(number, slice.to_owned(), 2)
        },
        address_type: family.name().into(),
        ports: Some(vec![slice_port("http", TARGET_PORT.into())]),
        endpoints: endpoints.collect(),
    }
}

/// Returns a TCP port of an EndpointSlice.
pub(crate) fn slice_port(name: &str, port: i32) -> EndpointPort {
    EndpointPort {
        name: Some(name.into()),
        protocol: Some("TCP".into()),
        port: Some(port),
        app_protocol: None,
    }
}

fn endpoint(service: u32, family: Family, pod: u32) -> Endpoint {
    let node = node_of(pod);
    Endpoint {
        addresses: vec![family.pod_address(pod).to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        }),
        node_name: Some(format!("node-{node}")),
        zone: Some(format!("zone-{}", node % 3)),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: Some(namespace(service)),
            name: Some(format!("{}-6f9c8d7b5-{pod:05}", name(service))),
            uid: Some(uid(3, pod)),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// Returns the object of [`NODE`] with these addresses.
pub(crate) fn node(addresses: &[IpAddr]) -> Node {
    let zone = (
        "topology.kubernetes.io/zone".to_owned(),
        "zone-1".to_owned(),
    );
    let addresses = addresses.iter().map(|address| NodeAddress {
        type_: "InternalIP".into(),
        address: address.to_string(),
    });
    Node {
        metadata: ObjectMeta {
            name: Some(NODE.into()),
            labels: Some([zone].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidr: Some("10.128.17.0/24".into()),
            pod_cidrs: Some(vec!["10.128.17.0/24".into()]),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: Some(addresses.collect()),
            ..NodeStatus::default()
        }),
    }
}

/// Returns the number of the node of Pod `pod`, which is never [`NODE`].
///
/// All endpoints are remote, so that every change costs the same.
pub(crate) fn node_of(pod: u32) -> u32 {
    // Knuth's multiplicative hash spreads the Pods pseudo-randomly over the nodes.
    100 + pod.wrapping_mul(2_654_435_761) % NODES
}

pub(crate) fn name(number: u32) -> String {
    format!("service-{number:05}")
}

pub(crate) fn namespace(number: u32) -> String {
    format!("team-{}", number / PER_NAMESPACE)
}

fn uid(kind: u32, number: u32) -> String {
    format!("{number:08x}-5d4c-4b3a-9f8e-{kind:012x}")
}

/// Returns the metadata of an object of Service `number`.
fn metadata(number: u32, name: String, kind: u32) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(namespace(number)),
        uid: Some(uid(kind, number)),
        creation_timestamp: Some(Time(CREATED)),
        ..ObjectMeta::default()
    }
}

/// Returns a `managedFields` value, which real objects have and proxies ignore.
fn managed_fields(manager: &str, field: &str) -> Option<Vec<ManagedFieldsEntry>> {
    let labels = json!({".": {}, "f:app.kubernetes.io/name": {}});
    let fields = json!({"f:metadata": {"f:labels": labels}, field: {}});
    Some(vec![ManagedFieldsEntry {
        manager: Some(manager.into()),
        operation: Some("Update".into()),
        api_version: Some("v1".into()),
        time: Some(Time(CREATED)),
        fields_type: Some("FieldsV1".into()),
        fields_v1: serde_json::from_value(fields).ok(),
        subresource: None,
    }])
}
