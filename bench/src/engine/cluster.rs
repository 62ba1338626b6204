//! Generates the API objects of a cluster of any size.

use std::net::Ipv4Addr;

use anyhow::ensure;
use proxier::testing::api;
use proxier::testing::model::{self, ObjectName, Protocol, TrafficPolicy};
use proxier::testing::store::{Event, Interner, Parsed, Update};
use serde_json::{Value, json};

/// The node of the measured daemon.
pub(crate) const NODE: &str = "node-17";

/// The address of [`NODE`].
pub(crate) const NODE_ADDRESS: [u8; 4] = [192, 168, 0, 17];

/// The number of nodes that run Pods.
const NODES: u32 = 1_000;

/// The number of Services in a namespace.
const PER_NAMESPACE: u32 = 100;

/// Services with one cluster IP, one port and one EndpointSlice each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    /// The number of Services.
    pub(crate) services: u32,
    /// The number of endpoints per Service.
    pub(crate) endpoints: u32,
}

impl Cluster {
    /// Returns the number of endpoints of all Services.
    pub(crate) fn all_endpoints(self) -> u64 {
        u64::from(self.services) * u64::from(self.endpoints)
    }

    /// Returns Service number `number` as JSON, with the fields that a real API server sends.
    pub(crate) fn service(self, number: u32) -> Value {
        let ip = cluster_ip(number);
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": name(number),
                "namespace": namespace(number),
                "uid": uid(1, number),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"app.kubernetes.io/name": name(number)},
                "managedFields": managed_fields("kubectl", "f:spec"),
            },
            "spec": {
                "type": "ClusterIP",
                "clusterIP": ip,
                "clusterIPs": [ip],
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster",
                "sessionAffinity": "None",
                "selector": {"app.kubernetes.io/name": name(number)},
                "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            },
            "status": {"loadBalancer": {}},
        })
    }

    /// Returns the EndpointSlice of Service `number` with its first `endpoints` Pods.
    pub(crate) fn slice(self, number: u32, endpoints: u32) -> Value {
        let name = name(number);
        let pods: Vec<Value> = (0..endpoints)
            .map(|pod| self.endpoint(number, pod))
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-x7k2p"),
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
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": pods,
        })
    }

    fn endpoint(self, service: u32, pod: u32) -> Value {
        let number = self.pod(service, pod);
        let node = node_of(number);
        json!({
            "addresses": [pod_address(number)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{node}"),
            "zone": format!("zone-{}", node % 3),
            "targetRef": {
                "kind": "Pod",
                "namespace": namespace(service),
                "name": format!("{}-6f9c8d7b5-{number:05}", name(service)),
                "uid": uid(3, number),
            },
        })
    }

    /// Returns the object of [`NODE`].
    pub(crate) fn node(self) -> Value {
        let address = Ipv4Addr::from(NODE_ADDRESS);
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "zone-1"}},
            "spec": {"podCIDRs": ["10.128.17.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        })
    }

    /// Returns the initial events of a watch: the node, all Services and all EndpointSlices.
    ///
    /// The objects are built without JSON, because parsing a large cluster under callgrind is slow.
    /// One slice is compared with its parsed JSON, so that the two forms cannot diverge.
    pub(crate) fn events(self, interner: &mut Interner) -> anyhow::Result<Vec<Event>> {
        let first = parse_slice(
            self.slice(0, self.endpoints).to_string().as_bytes(),
            interner,
        )?;
        ensure!(
            first == self.parsed_slice(0, interner),
            "`parsed_slice` differs from the parsed JSON of `slice`"
        );
        let mut services = Vec::new();
        let mut slices = Vec::new();
        for number in 0..self.services {
            services.push(parsed_service(number, interner));
            slices.push(self.parsed_slice(number, interner));
        }
        let node = model::Node {
            name: NODE.into(),
            addresses: vec![NODE_ADDRESS.into()],
            zone: Some("zone-1".into()),
            region: None,
            pod_cidrs: Vec::new(),
            is_leaving: false,
        };
        Ok(vec![
            Event::Node(node),
            Event::Services(Update::Reset(services)),
            Event::EndpointSlices(Update::Reset(slices)),
        ])
    }

    fn parsed_slice(self, number: u32, interner: &mut Interner) -> Parsed<model::EndpointSlice> {
        let service = name(number);
        let endpoint = |pod: u32, interner: &mut Interner| {
            let at = self.pod(number, pod);
            let node = node_of(at);
            let name = format!("node-{node}");
            let zone = format!("zone-{}", node % 3);
            model::Endpoint {
                address: pod_address(at).into(),
                is_ready: true,
                is_serving: true,
                is_terminating: false,
                location: interner.location(Some(&name), Some(&zone)),
                hints: None,
            }
        };
        let namespace = interner.intern(&namespace(number));
        let name = ObjectName::new(namespace, format!("{service}-x7k2p"));
        Parsed {
            name: name.clone(),
            object: Some(model::EndpointSlice {
                name,
                service: interner.intern(&service),
                ports: vec![model::SlicePort {
                    name: interner.intern("http"),
                    protocol: Protocol::Tcp,
                    port: 8080,
                }],
                endpoints: (0..self.endpoints)
                    .map(|pod| endpoint(pod, interner))
                    .collect(),
                changed: None,
            }),
            problems: Vec::new(),
        }
    }

    /// Returns the number of a Pod in the cluster.
    ///
    /// Each Service has one spare number, for the endpoint that the measurement adds.
    fn pod(self, service: u32, pod: u32) -> u32 {
        service * (self.endpoints + 1) + pod
    }
}

fn parsed_service(number: u32, interner: &mut Interner) -> Parsed<model::Service> {
    let namespace = interner.intern(&namespace(number));
    let name = ObjectName::new(namespace, interner.intern(&name(number)));
    Parsed {
        name: name.clone(),
        object: Some(model::Service {
            name,
            created: Some("2026-01-01T00:00:00Z".into()),
            cluster_ips: vec![cluster_ip(number).into()],
            ports: vec![model::ServicePort {
                name: interner.intern("http"),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: None,
            }],
            affinity_secs: None,
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            health_check_node_port: None,
            annotations: None,
        }),
        problems: Vec::new(),
    }
}

/// Returns the cluster IP of Service `number`, in 10.96.0.0/12.
fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0000 + number + 1)
}

/// Returns the address of Pod `pod`, in 10.128.0.0/9 (8 million addresses).
fn pod_address(pod: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0000 + pod + 1)
}

/// Returns the number of the node of Pod `pod`, which is never [`NODE`].
///
/// All endpoints are remote, so that every change costs the same.
fn node_of(pod: u32) -> u32 {
    // Knuth's multiplicative hash spreads the Pods pseudo-randomly over the nodes.
    100 + pod.wrapping_mul(2_654_435_761) % NODES
}

/// Parses an EndpointSlice from the JSON of an API server.
pub(crate) fn parse_slice(
    json: &[u8],
    interner: &mut Interner,
) -> anyhow::Result<Parsed<model::EndpointSlice>> {
    let wire: api::EndpointSliceObject = serde_json::from_slice(json)?;
    wire.parse(interner).map_err(anyhow::Error::msg)
}

fn name(number: u32) -> String {
    format!("service-{number:05}")
}

fn namespace(number: u32) -> String {
    format!("team-{}", number / PER_NAMESPACE)
}

fn uid(kind: u32, number: u32) -> String {
    format!("{number:08x}-5d4c-4b3a-9f8e-{kind:012x}")
}

/// Returns a `managedFields` value, which real objects have and the proxy ignores.
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
