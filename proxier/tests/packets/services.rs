//! Services of the packet tests, and the manifests that describe them.

use std::fmt;

use proxier::testing::model::{Family, TrafficPolicy};
use serde_json::{Value, json};

/// Our node. `LocalMode::NodeCidr` reads its Pod networks.
const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata:
  name: node-a
spec:
  podCIDRs: [10.244.1.0/24, "fd00:244:1::/64"]
status:
  addresses:
  - {type: InternalIP, address: 172.18.0.2}
  - {type: InternalIP, address: "fd00:172:18::2"}
"#;

/// Services and our Node. Printed, they are YAML manifests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Services(Vec<Service>);

impl Services {
    /// Returns the Services of most tests. Each serves TCP port 80 and UDP port 53 in both families.
    pub(crate) fn dual() -> Self {
        let web = Service::new("web", ["10.96.1.1", "fd00:10:96::1"])
            .external_ips(["198.51.100.1", "2001:db8:51::1"])
            .load_balancer(["198.51.100.2", "2001:db8:51::2"])
            .node_ports([30080, 30053])
            .endpoints(&[POD1, POD_B1]);
        let local = Service::new("local", ["10.96.2.1", "fd00:10:96::2:1"])
            .external_policy(TrafficPolicy::Local)
            .external_ips(["198.51.100.3", "2001:db8:51::3"])
            .load_balancer(["198.51.100.4", "2001:db8:51::4"])
            .node_ports([30081, 30054])
            .endpoints(&[POD2, POD_B1]);
        // Clients ext and node are in the source ranges, ext2 and pods are not.
        let ranged = Service::new("ranged", ["10.96.3.1", "fd00:10:96::3:1"])
            .load_balancer(["198.51.100.5", "2001:db8:51::5"])
            .source_ranges(&["203.0.113.0/24", "2001:db8:113::/48"])
            .source_ranges(&["172.18.0.2/32", "fd00:172:18::2/128"])
            .endpoints(&[POD1]);
        let empty = Service::new("empty", ["10.96.4.1", "fd00:10:96::4:1"])
            .load_balancer(["198.51.100.6", "2001:db8:51::6"])
            .node_ports([30084, 30055]);
        Self(vec![web, local, ranged, empty])
    }

    /// Adds a Service.
    pub(crate) fn with(mut self, service: Service) -> Self {
        self.0.push(service);
        self
    }

    /// Changes the Service `name`.
    #[track_caller]
    pub(crate) fn edit(mut self, name: &str, edit: impl FnOnce(&mut Service)) -> Self {
        let service = self.0.iter_mut().find(|it| it.name == name).unwrap();
        let before = service.clone();
        edit(service);
        assert_ne!(*service, before, "the edit changes nothing");
        self
    }

    /// Leaves the Service `name` to another proxy, by its label.
    pub(crate) fn without(self, name: &str) -> Self {
        self.edit(name, |service| service.proxy_name = Some("another"))
    }

    /// Adds source ranges that contain none of the clients, and that differ in each `round`.
    pub(crate) fn with_more_source_ranges(self, round: usize) -> Self {
        let more = [format!("10.{round}.0.0/16"), format!("fd00:{round}::/32")];
        self.edit("ranged", |service| service.source_ranges.extend(more))
    }

    /// Replaces UDP by `protocol` at all ports.
    pub(crate) fn instead_of_udp(mut self, protocol: &'static str) -> Self {
        for service in &mut self.0 {
            let ports = service.ports.iter_mut().map(|port| &mut port.protocol);
            let slices = service.slices.iter_mut();
            let targets = slices.flat_map(|slice| &mut slice.ports);
            for served in ports.chain(targets.map(|port| &mut port.protocol)) {
                if *served == "UDP" {
                    *served = protocol;
                }
            }
        }
        self
    }

    /// Sets the port `dns` of all endpoints.
    pub(crate) fn with_dns_target(mut self, number: u16) -> Self {
        let slices = self.0.iter_mut().flat_map(|service| &mut service.slices);
        for slice in slices {
            slice.set_dns_target(number);
        }
        self
    }

    /// Returns the manifests without one object.
    #[track_caller]
    pub(crate) fn manifests_without(&self, kind: &str, name: &str) -> String {
        let is_other = |it: &Value| it["kind"] != kind || it["metadata"]["name"] != name;
        let objects = self.objects();
        let others: Vec<&Value> = objects.iter().filter(|it| is_other(it)).collect();
        assert_eq!(others.len(), objects.len() - 1, "{kind} {name}");
        NODE.to_owned() + &others.into_iter().map(document).collect::<String>()
    }

    fn objects(&self) -> Vec<Value> {
        self.0.iter().flat_map(Service::objects).collect()
    }
}

impl fmt::Display for Services {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NODE)?;
        let mut objects = self.objects().into_iter();
        objects.try_for_each(|object| formatter.write_str(&document(&object)))
    }
}

/// Returns a document of the manifests. JSON is YAML.
fn document(object: &Value) -> String {
    format!("---\n{object}\n")
}

/// A host of the network that serves, and the node on which it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Endpoint {
    pub(crate) v4: &'static str,
    pub(crate) v6: &'static str,
    node: &'static str,
}

impl Endpoint {
    pub(crate) const fn new(v4: &'static str, v6: &'static str, node: &'static str) -> Self {
        Self { v4, v6, node }
    }
}

pub(crate) const POD1: Endpoint = Endpoint::new("10.244.1.2", "fd00:244:1::2", "node-a");
pub(crate) const POD2: Endpoint = Endpoint::new("10.244.1.3", "fd00:244:1::3", "node-a");
pub(crate) const POD3: Endpoint = Endpoint::new("10.244.1.4", "fd00:244:1::4", "node-a");
pub(crate) const POD_B1: Endpoint = Endpoint::new("10.244.2.2", "fd00:244:2::2", "node-b");
pub(crate) const POD_B2: Endpoint = Endpoint::new("10.244.2.3", "fd00:244:2::3", "node-b");

/// A port of a Service.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) name: &'static str,
    pub(crate) protocol: &'static str,
    number: u16,
    target: u16,
    pub(crate) node_port: Option<u16>,
}

impl Port {
    /// Returns a TCP port.
    pub(crate) fn http(name: &'static str, number: u16) -> Self {
        Self {
            name,
            protocol: "TCP",
            number,
            target: 8080,
            node_port: None,
        }
    }

    /// Returns a UDP port.
    pub(crate) fn dns(name: &'static str, number: u16) -> Self {
        Self {
            protocol: "UDP",
            target: 5353,
            ..Self::http(name, number)
        }
    }

    fn object(&self) -> Value {
        let mut port = json!({
            "name": self.name,
            "protocol": self.protocol,
            "port": self.number,
            "targetPort": self.target,
        });
        if let Some(number) = self.node_port {
            port["nodePort"] = json!(number);
        }
        port
    }

    fn target(&self) -> EndpointPort {
        EndpointPort {
            name: self.name,
            protocol: self.protocol,
            number: self.target,
        }
    }
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
struct EndpointPort {
    name: &'static str,
    protocol: &'static str,
    number: u16,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slice {
    family: Family,
    ports: Vec<EndpointPort>,
    pub(crate) endpoints: Vec<Endpoint>,
}

impl Slice {
    /// Sets the port `dns`.
    pub(crate) fn set_dns_target(&mut self, number: u16) {
        let mut ports = self.ports.iter_mut();
        ports.find(|it| it.name == "dns").unwrap().number = number;
    }

    /// Removes `endpoint`.
    pub(crate) fn remove(&mut self, endpoint: Endpoint) {
        self.endpoints.retain(|it| *it != endpoint);
    }

    fn object(&self, service: &str) -> Value {
        let ports = self
            .ports
            .iter()
            .map(|port| json!({"name": port.name, "protocol": port.protocol, "port": port.number}));
        let endpoints = self.endpoints.iter().map(|endpoint| {
            let address = match self.family {
                Family::V4 => endpoint.v4,
                Family::V6 => endpoint.v6,
            };
            json!({"addresses": [address], "nodeName": endpoint.node})
        });
        let (suffix, address_type) = match self.family {
            Family::V4 => ("4", "IPv4"),
            Family::V6 => ("6", "IPv6"),
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{suffix}"),
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": address_type,
            "ports": ports.collect::<Vec<_>>(),
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }
}

/// A Service of type LoadBalancer in both families, with its EndpointSlices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Service {
    name: &'static str,
    pub(crate) cluster_ips: [&'static str; 2],
    pub(crate) external_policy: TrafficPolicy,
    pub(crate) internal_policy: TrafficPolicy,
    pub(crate) has_affinity: bool,
    pub(crate) external_ips: Vec<&'static str>,
    pub(crate) load_balancer_ips: Vec<&'static str>,
    pub(crate) source_ranges: Vec<String>,
    pub(crate) ports: Vec<Port>,
    pub(crate) health_check_node_port: Option<u16>,
    /// Annotations of ours, without the prefix of their names.
    pub(crate) annotations: Vec<(&'static str, &'static str)>,
    /// The proxy that serves the Service instead of ours.
    proxy_name: Option<&'static str>,
    /// Either empty, or one slice of each family.
    pub(crate) slices: Vec<Slice>,
}

impl Service {
    /// Returns a Service at TCP port 80 and UDP port 53, without endpoints.
    pub(crate) fn new(name: &'static str, cluster_ips: [&'static str; 2]) -> Self {
        Self {
            name,
            cluster_ips,
            external_policy: TrafficPolicy::Cluster,
            internal_policy: TrafficPolicy::Cluster,
            has_affinity: false,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
            ports: vec![Port::http("http", 80), Port::dns("dns", 53)],
            health_check_node_port: None,
            annotations: Vec::new(),
            proxy_name: None,
            slices: Vec::new(),
        }
    }

    pub(crate) fn external_policy(mut self, policy: TrafficPolicy) -> Self {
        self.external_policy = policy;
        self
    }

    pub(crate) fn external_ips(mut self, addresses: [&'static str; 2]) -> Self {
        self.external_ips = addresses.into();
        self
    }

    pub(crate) fn load_balancer(mut self, addresses: [&'static str; 2]) -> Self {
        self.load_balancer_ips = addresses.into();
        self
    }

    /// Adds source ranges.
    pub(crate) fn source_ranges(mut self, ranges: &[&str]) -> Self {
        let ranges = ranges.iter().map(|&range| range.to_owned());
        self.source_ranges.extend(ranges);
        self
    }

    /// Replaces the ports. Call it before [`endpoints`](Self::endpoints), which copies them.
    pub(crate) fn ports(mut self, ports: Vec<Port>) -> Self {
        self.ports = ports;
        self
    }

    /// Sets the node ports, one for each port.
    pub(crate) fn node_ports(mut self, numbers: [u16; 2]) -> Self {
        self.set_node_ports(numbers);
        self
    }

    pub(crate) fn set_node_ports(&mut self, numbers: [u16; 2]) {
        for (port, number) in self.ports.iter_mut().zip(numbers) {
            port.node_port = Some(number);
        }
    }

    /// Sets the endpoints of both families.
    pub(crate) fn endpoints(mut self, endpoints: &[Endpoint]) -> Self {
        self.slices = [Family::V4, Family::V6]
            .map(|family| Slice {
                family,
                ports: self.ports.iter().map(Port::target).collect(),
                endpoints: endpoints.to_vec(),
            })
            .into();
        self
    }

    /// Returns the EndpointSlice of IPv4.
    pub(crate) fn slice_v4(&mut self) -> &mut Slice {
        &mut self.slices[0]
    }

    fn objects(&self) -> Vec<Value> {
        let slices = self.slices.iter().map(|slice| slice.object(self.name));
        [self.object()].into_iter().chain(slices).collect()
    }

    fn object(&self) -> Value {
        let ingress = self.load_balancer_ips.iter().map(|ip| json!({"ip": ip}));
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name},
            "spec": {
                "type": "LoadBalancer",
                "externalTrafficPolicy": format!("{:?}", self.external_policy),
                "internalTrafficPolicy": format!("{:?}", self.internal_policy),
                "sessionAffinity": if self.has_affinity { "ClientIP" } else { "None" },
                "clusterIP": self.cluster_ips[0],
                "clusterIPs": self.cluster_ips,
                "ipFamilies": ["IPv4", "IPv6"],
                "externalIPs": self.external_ips,
                "ports": self.ports.iter().map(Port::object).collect::<Vec<_>>(),
            },
            "status": {"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}},
        });
        // Manifests of clusters have no empty list.
        if !self.source_ranges.is_empty() {
            service["spec"]["loadBalancerSourceRanges"] = json!(self.source_ranges);
        }
        if let Some(number) = self.health_check_node_port {
            service["spec"]["healthCheckNodePort"] = json!(number);
        }
        for (name, value) in &self.annotations {
            let name = format!("ipvs-proxier.io/{name}");
            service["metadata"]["annotations"][name] = json!(value);
        }
        if let Some(name) = self.proxy_name {
            service["metadata"]["labels"] =
                json!({"service.kubernetes.io/service-proxy-name": name});
        }
        service
    }
}
