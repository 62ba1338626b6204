//! Computes from the snapshot which frontends this node serves, and with which endpoints.
//!
//! ```text
//! Snapshot     ─┐
//! Machine      ─┼─▶ desired() ─▶ (Desired, Vec<Problem>)
//! Capabilities ─┤
//! Config       ─┘
//! ```
//!
//! The plan names frontends and endpoints. How a kernel or a relay serves them is the dataplane's matter.
//!
//! Pure and total: equal input gives equal output, and bad input gives a [`Problem`] instead of an
//! error. [`Planner`] is the incremental form of the same function: it replans only the Services
//! that an event touched, and returns what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::model::{
    Cidr, Protocol, SchedulerFlags, ServicePortName, TrafficPolicy, Weights,
};
use crate::cluster::problem::Problem;
use crate::cluster::store::{Snapshot, Touched};
use crate::plan::frontend::Frontend;

mod access;
mod context;
mod elsewhere;
mod endpoints;
#[cfg(any(test, feature = "kernel-in-memory"))]
pub mod example;
mod external_ranges;
pub(crate) mod frontend;
mod health;
mod node_ports;
mod options;
mod planner;
mod precedence;
mod relay_options;
mod service;
pub(crate) mod service_ranges;
mod standing;

pub use access::{Access, Availability, Scope};
pub(crate) use endpoints::{LeftOut, Surveyed, survey};
pub use external_ranges::ExternalRanges;
pub use health::HealthCheck;
pub use node_ports::NodePortAddresses;
pub(crate) use options::drain;
pub use planner::{Changed, Planner};
pub use relay_options::RelayOptions;
pub use service_ranges::ServiceRanges;
pub use standing::Standings;
pub(crate) use standing::slow_start;

/// The settings of the operator that affect the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    /// The name of this node, as `nodeName` of endpoints spells it.
    pub node_name: Arc<str>,
    /// The scheduler of Services without the annotation `scheduler`.
    pub scheduler: Arc<str>,
    /// The weights of endpoints of Services without the annotation `weights`; `None`: all have weight 1.
    pub weights: Option<Arc<Weights>>,
    /// How long new endpoints of Services without the annotation `slow-start` have smaller weights; `None`: never.
    pub slow_start: Option<Duration>,
    /// The addresses of this node that serve node ports.
    pub node_port_addresses: NodePortAddresses,
    /// Whether 127.0.0.1 serves node ports, too, if it is among `node_port_addresses`. Only a relay can
    /// serve it.
    pub has_localhost_node_ports: bool,
    /// How service addresses are made local.
    pub service_addresses: ServiceAddresses,
    /// The addresses that Services may take outside the cluster.
    pub external_ranges: ExternalRanges,
    /// The addresses that only Services may have.
    pub service_ranges: ServiceRanges,
    /// How long a removed TCP endpoint may keep its connections, unless the annotation
    /// `drain-seconds` says otherwise.
    pub drain: Duration,
}

/// The defaults of the flags, for a node without name.
impl Default for PlanConfig {
    fn default() -> Self {
        Self {
            node_name: "".into(),
            scheduler: "rr".into(),
            weights: None,
            slow_start: None,
            node_port_addresses: NodePortAddresses::default(),
            has_localhost_node_ports: false,
            service_addresses: ServiceAddresses::default(),
            external_ranges: ExternalRanges::default(),
            service_ranges: ServiceRanges::default(),
            drain: Duration::from_secs(3_600),
        }
    }
}

/// How service addresses become local addresses of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceAddresses {
    /// `local` routes on the carrier `kube-ipvs0`, whose preferred source is the node's address.
    /// Adding them takes time linear in their number.
    ///
    /// Calico's Felix finds IPVS by a device of this name, and takes each local route of any other
    /// device for an address of the host, for which it enforces no NetworkPolicy of a Pod.
    #[default]
    Routes,
    /// Addresses on the dummy device `kube-ipvs0`, as kube-proxy adds them. The kernel needs time
    /// quadratic in their number to add them.
    Dummy,
    /// The same routes on `lo`, for nodes that must not have another device.
    Loopback,
    /// Not at all: only for a dataplane that translates connections before the kernel routes them. A process of the node
    /// needs another route to them.
    None,
}

impl ServiceAddresses {
    /// Returns whether the addresses become local by routes.
    pub fn use_routes(self) -> bool {
        matches!(self, Self::Routes | Self::Loopback)
    }

    /// Returns whether the addresses need the device `kube-ipvs0`.
    pub fn use_carrier(self) -> bool {
        match self {
            Self::Routes | Self::Dummy => true,
            Self::Loopback | Self::None => false,
        }
    }
}

/// The properties of the machine that affect the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The addresses of its interfaces, without service addresses, loopback and IPv6 link-local
    /// addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of its addresses that should not be the source of its connections.
    pub flawed_sources: BTreeMap<IpAddr, SourceFlaw>,
    /// The addresses of the devices in `--yield-devices`, each with its device. No virtual server is
    /// programmed there, because programs behind these devices serve them. Not in `addresses`.
    pub yielded: BTreeMap<IpAddr, Arc<str>>,
    /// Addresses of other machines that no object tells.
    pub peers: Peers,
    /// What this machine learnt of endpoints. A change replans only the Services that have them.
    pub standings: Standings,
}

/// What a dataplane can do, as far as the plan depends on it. The default is that of IPVS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The schedulers that it lacks.
    pub missing_schedulers: BTreeSet<Arc<str>>,
    /// The protocols that it cannot serve.
    pub unsupported: BTreeSet<Protocol>,
    /// What its relay can do; `None` if no process relays connections, so that the options of relays have no effect.
    pub relay: Option<RelayAbilities>,
    /// Whether it cannot count the answers of endpoints, so that passive health has no effect.
    pub lacks_answers: bool,
    /// Whether affinity with a timeout works everywhere. With IPVS it does not for clients inside the cluster at frontends
    /// with policy Local, nor at port 21 of this node's addresses.
    pub has_full_affinity: bool,
    /// Whether it cannot limit the connections of an endpoint.
    pub ignores_limits: bool,
    /// The frontends that another program serves, where Services ask for them. They are left alone.
    pub foreign: BTreeSet<Frontend>,
    /// Addresses at which an earlier process served node ports; used until the Node object arrives.
    /// Without them, `--nodeport-addresses=primary` would delete all node ports until then.
    pub node_port_addresses: BTreeSet<IpAddr>,
}

/// What an endpoint got and gave, as a dataplane counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Its new connections.
    pub connections: u64,
    /// Its packets to clients.
    pub packets: u64,
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, more: Self) {
        self.connections += more.connections;
        self.packets += more.packets;
    }
}

/// What a relay can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayAbilities {
    /// Whether it can connect to endpoints from the addresses of clients.
    pub keeps_sources: bool,
}

/// The addresses of other machines with which this machine speaks.
///
/// Nearly no plan depends on them, and some change each time that a node joins the cluster. So a change replans only
/// the Services that have such an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The next hops of the routes in the table `main`.
    pub next_hops: Arc<BTreeSet<IpAddr>>,
    /// The far ends of tunnels (VXLAN).
    pub tunnel_ends: Arc<BTreeSet<IpAddr>>,
    /// The addresses to which the connections to the API server led.
    pub api_servers: Arc<BTreeSet<IpAddr>>,
}

impl Machine {
    /// Returns whether an interface has `address`; a yielded device counts too.
    pub fn has(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address) || self.yielded.contains_key(address)
    }

    /// Notes a flaw of an address, unless a worse one is known.
    pub(crate) fn flaw(&mut self, address: IpAddr, flaw: SourceFlaw) {
        let known = self.flawed_sources.entry(address).or_insert(flaw);
        *known = flaw.max(*known);
    }
}

/// Why an address should not be the source of connections, the worst reason last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceFlaw {
    /// New connections should not use it (RFC 4862).
    Deprecated,
    /// A routing rule sends packets from it to a table of its own, which may lack the routes to Pods.
    ///
    /// After IPVS has chosen an endpoint, the kernel routes the packet again by its source (`ip_route_me_harder`).
    SelectedByRule,
    /// Duplicate address detection has not ended, or found a duplicate.
    Unusable,
}

/// The plan of one frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendPlan {
    /// What it has in common with others. Frontends with equal profiles share their memory.
    pub profile: Arc<Profile>,
    /// Its endpoints. Frontends of a Service port with the same endpoints share their memory.
    pub endpoints: Endpoints,
    /// The endpoints for clients inside the cluster, if these may differ: with external policy Local, clients inside reach
    /// all endpoints, and clients outside only those of this node.
    pub inside: Option<Box<InsidePlan>>,
    /// The Service port that it serves.
    pub owner: ServicePortName,
}

/// The properties of a frontend that most others of the cluster have too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Profile {
    /// The kind of the frontend.
    pub kind: FrontendKind,
    /// The clients that may use it.
    pub access: Access,
    /// How connections are spread.
    pub balancing: Balancing,
    /// How long a removed endpoint may keep its connections.
    pub drain: Duration,
    /// How connections are relayed, if they are.
    pub relay: RelayOptions,
    /// The number of frontends of its Service on this node, rounded up to a power of two: so one more seldom changes the
    /// plans of the others.
    pub siblings: usize,
}

/// The plan of a frontend for clients inside the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsidePlan {
    /// How connections are spread.
    pub balancing: Balancing,
    /// The endpoints of all nodes.
    pub endpoints: Endpoints,
}

/// How the connections of clients are spread over endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Balancing {
    /// The scheduler.
    pub scheduler: Arc<str>,
    /// The options of a scheduler that hashes clients' addresses.
    pub flags: SchedulerFlags,
    /// How long a client that has no connection stays at its endpoint (session affinity); `None`: it does not.
    pub affinity_secs: Option<u32>,
}

/// Endpoints, ordered, each address and port once. Copies share their memory.
pub type Endpoints = Arc<[SelectedEndpoint]>;

/// An endpoint that serves a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SelectedEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// The port at which it listens.
    pub port: u16,
    /// Its share of new connections; with 0 it gets none.
    pub weight: u16,
    /// The most connections that it gets at one virtual server; 0 for no limit.
    pub most_connections: u16,
}

impl FrontendPlan {
    /// Returns whether clients outside the cluster use this endpoint, and clients inside if the plan does not
    /// distinguish them.
    pub fn has_endpoint(&self, address: IpAddr, port: u16) -> bool {
        has_endpoint(&self.endpoints, address, port)
    }

    /// Returns the number of endpoints; one for clients inside and outside the cluster counts twice if the plan
    /// distinguishes them.
    pub fn endpoint_count(&self) -> usize {
        let inside = self.inside.as_ref();
        self.endpoints.len() + inside.map_or(0, |inside| inside.endpoints.len())
    }

    /// Returns how connections are spread, for each kind of client that the plan distinguishes.
    pub fn balancings(&self) -> impl Iterator<Item = &Balancing> {
        let inside = self.inside.iter().map(|inside| &inside.balancing);
        inside.chain([&self.profile.balancing])
    }

    /// Returns whether clients get wrong results without packet rules.
    ///
    /// Without the rules of source ranges, all clients are admitted. If rules do not tell clients inside the cluster from
    /// others, they reach only the endpoints of this node. Without masquerade, an endpoint on another node answers an
    /// outside client directly, and the client drops the answer for its wrong source.
    pub fn needs_rules(&self) -> bool {
        let access = &self.profile.access;
        let is_masqueraded =
            access.scope != Scope::Internal && access.policy == TrafficPolicy::Cluster;
        access.source_ranges.is_some() || self.inside.is_some() || is_masqueraded
    }
}

/// Returns the endpoint with this address and port.
pub(crate) fn find_endpoint(
    endpoints: &[SelectedEndpoint],
    address: IpAddr,
    port: u16,
) -> Option<&SelectedEndpoint> {
    let index = endpoints.binary_search_by_key(&(address, port), |it| (it.address, it.port));
    endpoints.get(index.ok()?)
}

/// Returns whether `endpoints` have this address and port.
pub(crate) fn has_endpoint(endpoints: &[SelectedEndpoint], address: IpAddr, port: u16) -> bool {
    find_endpoint(endpoints, address, port).is_some()
}

/// The kinds of frontends, ordered by precedence.
///
/// If two Services claim a frontend, a cluster IP wins: an external address must not take over another Service's
/// cluster IP. Otherwise the older Service wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// `spec.ports[].nodePort` on an address of the node.
    NodePort,
}

impl FrontendKind {
    /// Returns the field of the Service that requests such frontends.
    pub fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::ExternalIp => "spec.externalIPs",
            Self::LoadBalancer => "status.loadBalancer.ingress",
            Self::NodePort => "spec.ports[].nodePort",
        }
    }
}

/// What this node serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// All frontends.
    pub frontends: BTreeMap<Frontend, FrontendPlan>,
    /// All service addresses to make local, each with its preferred source, if any.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
    /// The addresses of endpoints on this node.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// The health checks for load balancers, by port of this node.
    pub health_checks: BTreeMap<u16, HealthCheck>,
    /// The ranges in which an address without a Service is rejected.
    pub service_ranges: BTreeSet<Cidr>,
}

impl Desired {
    /// Returns the frontends that only a relay can serve ([`Frontend::needs_relay`]).
    pub fn needing_relay(&self) -> impl Iterator<Item = (&Frontend, &FrontendPlan)> {
        let range = |first: IpAddr, last: IpAddr| {
            let (first, last) = (Frontend::range_at(first), Frontend::range_at(last));
            self.frontends.range(first.start()..=last.end())
        };
        let v4 = range([127, 0, 0, 0].into(), [127, 255, 255, 255].into());
        v4.chain(range(
            Ipv6Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
        ))
    }
}

/// Returns the desired state of the node, and the problems of its input.
pub fn desired(
    snapshot: &Snapshot,
    machine: &Machine,
    capabilities: &Capabilities,
    config: &PlanConfig,
) -> (Desired, Vec<Problem>) {
    let mut planner = Planner::new(config.clone());
    planner.update(snapshot, machine, capabilities, Touched::All);
    let problems = planner.problems(snapshot);
    (planner.into_desired(), problems)
}
