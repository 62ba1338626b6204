//! Generates the API objects of a cluster of any size.

use anyhow::ensure;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxier::testing::api::{self, WireObject as _};
use proxier::testing::model::{self, ObjectName, Protocol, TrafficPolicy};
use proxier::testing::store::{Event, Interner, Parsed, Update};

pub(crate) use crate::cluster::objects::NODE;
use crate::cluster::objects::{self, Family, name, namespace, node_of};

/// The address of [`NODE`].
pub(crate) const NODE_ADDRESS: [u8; 4] = [192, 168, 0, 17];

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

    /// Returns Service number `number`, with the fields that a real API server sends.
    pub(crate) fn service(self, number: u32) -> Service {
        objects::service(number, &[Family::V4], None)
    }

    /// Returns the EndpointSlice of Service `number` with its first `endpoints` Pods.
    pub(crate) fn slice(self, number: u32, endpoints: u32) -> EndpointSlice {
        let pods: Vec<u32> = (0..endpoints).map(|pod| self.pod(number, pod)).collect();
        objects::slice(number, &slice_name(number), Family::V4, &pods)
    }

    /// Returns the object of [`NODE`].
    pub(crate) fn node(self) -> Node {
        objects::node(&[NODE_ADDRESS.into()])
    }

    /// Returns the initial events of a watch: the node, all Services and all EndpointSlices.
    ///
    /// The objects are built without JSON, because parsing a large cluster under callgrind is slow.
    /// One slice is compared with its parsed JSON, so that the two forms cannot diverge.
    pub(crate) fn events(self, interner: &mut Interner) -> anyhow::Result<Vec<Event>> {
        let first = parse_slice(
            &serde_json::to_vec(&self.slice(0, self.endpoints))?,
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
        let service = ObjectName::new(namespace(number), name(number));
        let endpoint = |pod: u32, interner: &mut Interner| {
            let at = self.pod(number, pod);
            let node = node_of(at);
            let name = format!("node-{node}");
            let zone = format!("zone-{}", node % 3);
            model::Endpoint {
                address: Family::V4.pod_address(at),
                is_ready: true,
                is_serving: true,
                is_terminating: false,
                location: interner.location(Some(&name), Some(&zone), model::Hints::default()),
            }
        };
        let name = ObjectName::new(namespace(number), slice_name(number));
        let ports = vec![model::SlicePort {
            name: interner.intern("http"),
            protocol: Protocol::Tcp,
            port: 8080,
        }];
        let ports = interner.slice_ports(ports);
        Parsed {
            name: name.clone(),
            object: Some(model::EndpointSlice {
                name,
                service,
                ports,
                endpoints: (0..self.endpoints)
                    .map(|pod| endpoint(pod, interner))
                    .collect(),
            }),
            problems: Vec::new(),
            changed: None,
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
    let name = ObjectName::new(namespace(number), name(number));
    let ports = vec![model::ServicePort {
        name: interner.intern("http"),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
    }];
    let ports = interner.service_ports(ports);
    Parsed {
        name: name.clone(),
        object: Some(model::Service {
            name,
            created: Some(std::time::UNIX_EPOCH),
            cluster_ips: [Family::V4.cluster_ip(number)].into(),
            ports,
            affinity_secs: None,
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            external: None,
            health_check_node_port: None,
            annotations: None,
        }),
        problems: Vec::new(),
        changed: None,
    }
}

/// Parses an EndpointSlice from the JSON of an API server.
pub(crate) fn parse_slice(
    json: &[u8],
    interner: &mut Interner,
) -> anyhow::Result<Parsed<model::EndpointSlice>> {
    let wire: api::EndpointSliceObject<'_> = api::from_json(json)?;
    wire.parse(interner).map_err(anyhow::Error::msg)
}

fn slice_name(number: u32) -> String {
    format!("{}-x7k2p", name(number))
}
