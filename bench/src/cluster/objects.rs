//! API objects of a generated cluster as JSON, with the fields that a real API server sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};

/// The node of the measured proxy.
pub(crate) const NODE: &str = "node-17";

/// The number of nodes that run Pods.
const NODES: u32 = 1_000;

/// The number of Services in a namespace.
const PER_NAMESPACE: u32 = 100;

/// The most endpoints of a slice, as Kubernetes' controller fills them.
pub(crate) const PER_SLICE: usize = 100;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    fn name(self) -> &'static str {
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

/// Returns Service number `number` as JSON.
pub(crate) fn service(number: u32, families: &[Family], node_port: Option<u16>) -> Value {
    let name = name(number);
    let ips: Vec<IpAddr> = families.iter().map(|it| it.cluster_ip(number)).collect();
    let names: Vec<&str> = families.iter().map(|it| it.name()).collect();
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace(number),
            "uid": uid(1, number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app.kubernetes.io/name": name},
            "managedFields": managed_fields("kubectl", "f:spec"),
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ips[0],
            "clusterIPs": ips,
            "ipFamilies": names,
            "ipFamilyPolicy": if ips.len() > 1 { "RequireDualStack" } else { "SingleStack" },
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    });
    if let Some(port) = node_port {
        service["spec"]["type"] = json!("NodePort");
        service["spec"]["externalTrafficPolicy"] = json!("Cluster");
        service["spec"]["ports"][0]["nodePort"] = json!(port);
    }
    service
}

/// Returns the EndpointSlice called `slice` of Service `number` with these Pods.
pub(crate) fn slice(number: u32, slice: &str, family: Family, pods: &[u32]) -> Value {
    let name = name(number);
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|&pod| endpoint(number, family, pod))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice,
            "generateName": format!("{name}-"),
            "namespace": namespace(number),
            "uid": uid(2, number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app.kubernetes.io/name": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": name,
            },
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Service",
                "name": name,
                "uid": uid(1, number),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
            "managedFields": managed_fields("kube-controller-manager", "f:endpoints"),
        },
        "addressType": family.name(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
}

fn endpoint(service: u32, family: Family, pod: u32) -> Value {
    let node = node_of(pod);
    json!({
        "addresses": [family.pod_address(pod)],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{node}"),
        "zone": format!("zone-{}", node % 3),
        "targetRef": {
            "kind": "Pod",
            "namespace": namespace(service),
            "name": format!("{}-6f9c8d7b5-{pod:05}", name(service)),
            "uid": uid(3, pod),
        },
    })
}

/// Returns the object of [`NODE`] with these addresses.
pub(crate) fn node(addresses: &[IpAddr]) -> Value {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"type": "InternalIP", "address": address}))
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "zone-1"}},
        "spec": {"podCIDR": "10.128.17.0/24", "podCIDRs": ["10.128.17.0/24"]},
        "status": {"addresses": addresses},
    })
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

/// Returns a `managedFields` value, which real objects have and proxies ignore.
fn managed_fields(manager: &str, field: &str) -> Value {
    json!([{
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app.kubernetes.io/name": {}}}, field: {}},
    }])
}
