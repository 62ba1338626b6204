//! What the API server says, reduced to what a node needs.
//!
//! Plain values: no Kubernetes API type, no IPVS type, no I/O. Everything here is already valid;
//! [`crate::api`] parses objects into these types and reports as [`crate::problem::Problem`] what it
//! had to leave out.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

mod annotations;
mod networks;
mod protocol;

pub use annotations::{Annotations, SchedulerFlags, TopologyKey, Weights};
pub use networks::Networks;
pub use protocol::Protocol;

/// The name of an object; prints as `namespace/name`, or `name` where it is in no namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace; empty for objects of the whole cluster, such as Nodes.
    pub namespace: Arc<str>,
    /// The name inside the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The object `name` in `namespace`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// One port of one Service: the unit that is planned; prints as `namespace/name:port`.
///
/// Kubernetes requires port names to be unique inside a Service; a single port may be unnamed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: ObjectName,
    /// The port's name, empty when unnamed.
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

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// A network without host bits: `10.0.0.5/8` and `10.0.0.0/8` are the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr(IpNetwork);

impl Cidr {
    /// Reads `address/length`, tolerating white space around it (as the API server does for source
    /// ranges).
    ///
    /// # Errors
    /// When the text is not an address, a slash and a prefix length; a bare address is refused.
    pub fn parse(text: &str) -> Result<Self, InvalidCidr> {
        let text = text.trim();
        let (_, length) = text.split_once('/').ok_or(InvalidCidr)?;
        if length.is_empty() || !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidCidr);
        }
        let network: IpNetwork = text.parse().map_err(|_| InvalidCidr)?;
        IpNetwork::new(network.network(), network.prefix())
            .map(Self)
            .map_err(|_| InvalidCidr)
    }

    /// The network's first address.
    pub fn network(&self) -> IpAddr {
        self.0.network()
    }

    /// The prefix length in bits.
    pub fn prefix_len(&self) -> u8 {
        self.0.prefix()
    }

    /// The network's family.
    pub fn family(&self) -> Family {
        self.network().into()
    }

    /// Whether `address` lies in the network; never across families.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }
}

/// The network of that address alone.
impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// The text is not a network in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a network in CIDR form, such as 10.96.0.0/12 or fd00::/112")]
pub struct InvalidCidr;

/// Which endpoints may serve a kind of traffic (`internalTrafficPolicy`, `externalTrafficPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// All endpoints of the cluster.
    #[default]
    Cluster,
    /// Only endpoints on the node that the traffic entered.
    Local,
}

/// A Service that this node has to serve.
///
/// # Invariant
/// Has at least one cluster IP. Headless and `ExternalName` Services and those with a foreign
/// `service.kubernetes.io/service-proxy-name` never become one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in its RFC 3339 form (UTC, whole seconds), so that text order
    /// is time order. When two Services claim the same address and port the older one gets it.
    pub created: Option<Box<str>>,
    /// Cluster IPs, at most one per family.
    pub cluster_ips: Vec<IpAddr>,
    /// Its ports, in the object's order; (protocol, port) and names are unique.
    pub ports: Vec<ServicePort>,
    /// How long a client stays with an endpoint after its last connection, in seconds; `None`
    /// without affinity. 1 to 86,400.
    pub affinity_secs: Option<u32>,
    /// Who serves traffic to the cluster IPs.
    pub internal_policy: TrafficPolicy,
    /// Who serves traffic to external IPs, load-balancer addresses and node ports.
    pub external_policy: TrafficPolicy,
    /// `spec.externalIPs`, without duplicates; of the families of the cluster IPs only.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress` addresses of mode VIP, without duplicates; of the families of
    /// the cluster IPs only.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`; a family without any is open to every source.
    pub source_ranges: Vec<Cidr>,
    /// `spec.healthCheckNodePort`, where it applies.
    pub health_check_node_port: Option<u16>,
    /// What its annotations ask for; `None` for most Services.
    pub annotations: Option<Box<Annotations>>,
}

impl Service {
    /// Whether its plan depends on where other nodes are.
    pub fn needs_regions(&self) -> bool {
        let annotations = self.annotations.as_deref();
        let keys = annotations.and_then(|annotations| annotations.topology_keys.as_deref());
        keys.is_some_and(|keys| keys.contains(&TopologyKey::Region))
    }
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, empty when unnamed.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port that clients address; never 0.
    pub port: u16,
    /// The node port, if the Service has one; never 0.
    pub node_port: Option<u16>,
}

/// Some of the endpoints of a Service, of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// The slice's own name.
    pub name: ObjectName,
    /// The name of the Service in the slice's namespace (label `kubernetes.io/service-name`).
    pub service: Arc<str>,
    /// The ports that every endpoint of the slice listens on.
    pub ports: Vec<SlicePort>,
    /// The endpoints, in the object's order.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The Service whose endpoints these are.
    pub fn service_name(&self) -> ObjectName {
        ObjectName {
            namespace: self.name.namespace.clone(),
            name: self.service.clone(),
        }
    }
}

/// A port of an [`EndpointSlice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// The name of the Service port it belongs to, empty when unnamed.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port the endpoints listen on; never 0.
    pub port: u16,
}

/// A server behind a Service, usually a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Ready for traffic.
    pub is_ready: bool,
    /// Answers, even if it is terminating.
    pub is_serving: bool,
    /// On its way out.
    pub is_terminating: bool,
    /// Where it runs; one value for all endpoints of a node.
    pub location: Arc<Location>,
    /// Where the control plane wants it used; `None` without hints (most endpoints).
    pub hints: Option<Box<Hints>>,
}

/// Where an [`Endpoint`] runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The node, if known.
    pub node: Option<Arc<str>>,
    /// The zone, if known.
    pub zone: Option<Arc<str>>,
}

/// Topology hints of an [`Endpoint`] (KEP-2433, KEP-3015).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Zones whose clients should use the endpoint; empty = no zone hint.
    pub zones: Vec<Arc<str>>,
    /// Nodes whose clients should use the endpoint; empty = no node hint.
    pub nodes: Vec<Arc<str>>,
}

/// A node's object: usually our own.
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
    /// `spec.podCIDRs`: where the addresses of its pods come from.
    pub pod_cidrs: Vec<Cidr>,
}

impl Node {
    /// The node's main address of `family`: what `--nodeport-addresses=primary` means.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses
            .iter()
            .copied()
            .find(|&address| Family::from(address) == family)
    }
}

/// Where a node is: all that has to be known of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its name.
    pub name: Arc<str>,
    /// Label `topology.kubernetes.io/region`.
    pub region: Option<Arc<str>>,
}

/// Networks that the cluster takes cluster IPs from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    /// The object's name.
    pub name: Arc<str>,
    /// `spec.cidrs`.
    pub ranges: Vec<Cidr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidr_drops_host_bits_and_refuses_bare_addresses() {
        assert_eq!(
            Cidr::parse("10.0.0.5/8").unwrap(),
            Cidr::parse(" 10.0.0.0/8 ").unwrap()
        );
        assert_eq!(Cidr::parse("fd00::1/64").unwrap().to_string(), "fd00::/64");
        for bad in [
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.0/255.0.0.0",
            "x/8",
            "10.0.0.0/",
            "/8",
            "",
        ] {
            assert!(Cidr::parse(bad).is_err(), "{bad}");
        }
    }
}
