//! The cluster's objects, reduced to what a node needs.
//!
//! The types are plain values without Kubernetes API types, IPVS types or I/O, and always valid.
//! [`crate::cluster::api`] parses objects into them and reports invalid parts as
//! [`Problem`](crate::cluster::problem::Problem)s.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

mod annotations;

pub use annotations::{Annotations, SchedulerFlags, TopologyKey, Weights};
pub use net::{Cidr, Family, Networks, Protocol, ProxyProtocol, SourceAddress};

/// The name of an object; prints as `namespace/name`, or `name` if it is cluster-scoped.
///
/// Ordered by namespace, then by name. The default is empty, which no object's name is.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(
    /// The namespace, NUL and the name: one allocation, and its order is that of the two parts, because no
    /// valid name contains a character below `-`.
    Arc<str>,
);

impl ObjectName {
    /// Returns the name of the object `name` in `namespace`, which is empty for cluster-scoped objects, such
    /// as Nodes.
    pub fn new(namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        Self([namespace.as_ref(), name.as_ref()].join("\0").into())
    }

    /// Returns the same name in the memory that `share` returns for its text.
    pub(crate) fn share(self, share: impl FnOnce(Arc<str>) -> Arc<str>) -> Self {
        Self(share(self.0))
    }

    /// Returns the namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// Returns the name inside the namespace.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        let end = memchr::memchr(0, self.0.as_bytes());
        end.map_or(("", &self.0), |end| (&self.0[..end], &self.0[end + 1..]))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            ("", name) => f.write_str(name),
            (namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The name of a Service's port, the unit of planning; prints as `namespace/name:port`.
///
/// Kubernetes requires port names to be unique inside a Service; a single port may be unnamed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: ObjectName,
    /// The port's name; empty if unnamed.
    pub port: Arc<str>,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.port {
            "" => self.service.fmt(f),
            port => write!(f, "{}:{port}", self.service),
        }
    }
}

/// Parses `namespace/name:port`. Without a slash, the namespace is empty.
impl From<&str> for ServicePortName {
    fn from(text: &str) -> Self {
        let (service, port) = text.split_once(':').unwrap_or((text, ""));
        let (namespace, name) = service.split_once('/').unwrap_or(("", service));
        Self {
            service: ObjectName::new(namespace, name),
            port: port.into(),
        }
    }
}

/// The endpoints that may serve traffic (`internalTrafficPolicy`, `externalTrafficPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficPolicy {
    /// All endpoints of the cluster.
    #[default]
    Cluster,
    /// Only endpoints on the node that receives the traffic.
    Local,
}

/// A Service that this node serves.
///
/// # Invariant
/// Has at least one cluster IP. Headless and `ExternalName` Services and those with the label
/// `service.kubernetes.io/service-proxy-name` are never converted to this type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp`. If two Services claim a frontend, the older one gets it.
    pub created: Option<SystemTime>,
    /// Cluster IPs, at most one per family.
    pub cluster_ips: Box<[IpAddr]>,
    /// Its ports, in the object's order; (protocol, port) and names are unique.
    pub ports: Arc<[ServicePort]>,
    /// The timeout of session affinity in seconds, 1 to 86,400; `None` without affinity.
    pub affinity_secs: Option<u32>,
    /// The endpoints of traffic to the cluster IPs.
    pub internal_policy: TrafficPolicy,
    /// The endpoints of traffic to external IPs, load-balancer addresses and node ports.
    pub external_policy: TrafficPolicy,
    /// Its addresses for clients outside the cluster; `None` for most Services.
    pub external: Option<Box<ExternalAddresses>>,
    /// `spec.healthCheckNodePort`, if the type and the external policy require one.
    pub health_check_node_port: Option<u16>,
    /// The options of its annotations; `None` for most Services.
    pub annotations: Option<Box<Annotations>>,
}

/// The addresses of a Service for clients outside the cluster, and the ranges of these clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalAddresses {
    /// `spec.externalIPs` of the cluster IPs' families, without duplicates.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of `status.loadBalancer.ingress` with mode VIP, of the cluster IPs' families,
    /// without duplicates.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`; a family without a range accepts every source.
    pub source_ranges: Vec<Cidr>,
}

impl ExternalAddresses {
    /// Returns them as a [`Service`] has them: `None` if there are none.
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl Service {
    /// Returns its addresses for clients outside the cluster.
    pub fn external(&self) -> &ExternalAddresses {
        static NONE: ExternalAddresses = ExternalAddresses {
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
        };
        self.external.as_deref().unwrap_or(&NONE)
    }

    /// Returns the same Service with only these addresses for clients outside the cluster.
    pub fn with_external(&self, external_ips: Vec<IpAddr>, load_balancer_ips: Vec<IpAddr>) -> Self {
        let external = ExternalAddresses {
            external_ips,
            load_balancer_ips,
            source_ranges: self.external().source_ranges.clone(),
        };
        Self {
            external: external.boxed(),
            ..self.clone()
        }
    }

    /// Returns whether its plan depends on the regions of other nodes.
    pub fn needs_regions(&self) -> bool {
        let Some(annotations) = self.annotations.as_deref() else {
            return false;
        };
        let mut keys = annotations.topology_keys.iter().flatten();
        let weights = annotations.weights.as_ref();
        keys.any(|key| *key == TopologyKey::Region) || weights.is_some_and(Weights::need_regions)
    }
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// Its name; empty if unnamed.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port that clients use; never 0.
    pub port: u16,
    /// The node port, if the Service has one; never 0.
    pub node_port: Option<u16>,
}

/// Endpoints of a Service, of one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The slice's name.
    pub name: ObjectName,
    /// Its Service, in the same namespace (label `kubernetes.io/service-name`).
    pub service: ObjectName,
    /// The ports of every endpoint of the slice, ordered by name and protocol.
    pub ports: Arc<[SlicePort]>,
    /// The endpoints, in the object's order.
    pub endpoints: Box<[Endpoint]>,
}

/// A port of an [`EndpointSlice`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// The name of the Service port; empty if unnamed.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on which the endpoints listen; never 0.
    pub port: u16,
}

/// An endpoint of a Service, usually a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Condition `ready`: accepts traffic and is not terminating.
    pub is_ready: bool,
    /// Condition `serving`: accepts traffic, even if it is terminating.
    pub is_serving: bool,
    /// Condition `terminating`.
    pub is_terminating: bool,
    /// Its node and zone, shared by all endpoints of the node.
    pub location: Arc<Location>,
}

impl Endpoint {
    /// Returns whether it runs on `node`; `false` if the name is empty.
    pub fn is_on(&self, node: &str) -> bool {
        !node.is_empty() && self.location.node.as_deref() == Some(node)
    }
}

/// The location of an [`Endpoint`], and for which clients it is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The node, if known.
    pub node: Option<Arc<str>>,
    /// The zone, if known.
    pub zone: Option<Arc<str>>,
    /// The topology hints; empty for most endpoints.
    pub hints: Hints,
}

/// Topology hints of an [`Endpoint`] (KEP-2433, KEP-3015).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Zones whose clients should use the endpoint; empty without a zone hint.
    pub zones: Vec<Arc<str>>,
    /// Nodes whose clients should use the endpoint; empty without a node hint.
    pub nodes: Vec<Arc<str>>,
}

/// A node, usually our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Internal addresses, then external ones, in the object's order.
    pub addresses: Vec<IpAddr>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// Label `topology.kubernetes.io/region`.
    pub region: Option<Arc<str>>,
    /// `spec.podCIDRs`: the networks of its Pods.
    pub pod_cidrs: Vec<Cidr>,
    /// Whether it is being deleted, or the cluster autoscaler is about to delete it. Load balancers
    /// should choose other nodes then; nothing else changes.
    pub is_leaving: bool,
}

impl Node {
    /// Returns the node's first address of `family`, as `--nodeport-addresses=primary` selects.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|&address| Family::from(address) == family)
    }

    /// Returns whether plans for `self` and `other` are the same: they may differ in
    /// [`Node::is_leaving`] only.
    pub fn plans_as(&self, other: &Self) -> bool {
        let other = Self {
            is_leaving: self.is_leaving,
            ..other.clone()
        };
        *self == other
    }
}

/// The location of a node other than ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLocation {
    /// Its name.
    pub name: Arc<str>,
    /// Label `topology.kubernetes.io/region`.
    pub region: Option<Arc<str>>,
    /// Its addresses, in the order of [`Node::addresses`]; empty if only its metadata is known.
    pub addresses: Vec<IpAddr>,
}

/// Networks from which the cluster allocates cluster IPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// The object's name.
    pub name: Arc<str>,
    /// `spec.cidrs`.
    pub ranges: Vec<Cidr>,
}
