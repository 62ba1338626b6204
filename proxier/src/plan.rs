//! Computes the desired kernel state of this node from the snapshot.
//!
//! ```text
//! Snapshot ─┐
//! Machine  ─┼─▶ desired() ─▶ (Desired, Vec<Problem>)
//! Config   ─┘
//! ```
//!
//! Pure and total: equal input gives equal output, and bad input gives a [`Problem`] instead of an
//! error. [`Planner`] is the incremental form of the same function: it replans only the Services
//! that an event touched, and returns what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::definition::ServerDefinition;
use crate::destinations::Destinations;
use crate::marks::Marks;
use crate::model::{Protocol, ServicePortName};
use crate::problem::Problem;
use crate::split_map::SplitMap;
use crate::store::{Snapshot, Touched};

mod admission;
mod context;
mod elsewhere;
mod endpoints;
mod health;
mod node_ports;
mod options;
mod planner;
mod precedence;
mod relay_options;
mod service;

pub use admission::{Admission, Availability, MarkedClients, Scope};
pub(crate) use health::HealthCheck;
pub use node_ports::NodePortAddresses;
pub(crate) use options::drain;
pub use planner::{Changed, Planner};
pub use relay_options::RelayOptions;

/// The settings of the operator that affect the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    /// The name of this node, as `nodeName` of endpoints spells it.
    pub node_name: Arc<str>,
    /// The scheduler of Services without the annotation `scheduler`.
    pub scheduler: ipvs::SchedulerName,
    /// The addresses of this node that serve node ports.
    pub node_port_addresses: NodePortAddresses,
    /// Whether 127.0.0.1 serves node ports, too, if it is among `node_port_addresses`. Only a relay can
    /// serve it.
    pub has_localhost_node_ports: bool,
    /// How service addresses are made local.
    pub service_addresses: ServiceAddresses,
    /// How long a removed TCP endpoint may keep its connections, unless the annotation
    /// `drain-seconds` says otherwise.
    pub drain: Duration,
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
}

impl ServiceAddresses {
    /// Returns whether the addresses need the device `kube-ipvs0`.
    pub fn use_carrier(self) -> bool {
        match self {
            Self::Routes | Self::Dummy => true,
            Self::Loopback => false,
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
    /// Addresses at which an earlier process served node ports; used until the Node object arrives.
    /// Without them, `--nodeport-addresses=primary` would delete all node ports until then.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// Schedulers that the kernel rejected with `ENOENT`.
    pub missing_schedulers: BTreeSet<ipvs::SchedulerName>,
    /// The firewall marks of Service ports.
    pub marks: Marks,
    /// Whether a process relays the connections of all frontends, so that the options of relays have an
    /// effect.
    pub is_relayed: bool,
    /// Whether that process can connect to endpoints from the addresses of clients.
    pub can_keep_sources: bool,
    /// Protocols that the dataplane cannot serve.
    pub unsupported: BTreeSet<Protocol>,
    /// Addresses of other machines that no object tells.
    pub peers: Peers,
    /// Virtual servers of other programs where Services ask for frontends. They are left alone.
    pub foreign: BTreeSet<ipvs::ServiceKey>,
}

/// The addresses of other machines with which this machine speaks.
///
/// Nearly no plan depends on them, and some change each time that a node joins the cluster. So a change replans only
/// the Services that have such an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The next hops of the routes in the table `main`.
    pub next_hops: Arc<BTreeSet<IpAddr>>,
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

/// A desired virtual server. Its key is that of its entry in [`Desired`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// What it has in common with others. Virtual servers with equal profiles share their memory.
    pub profile: Arc<Profile>,
    /// Its destinations. Frontends of a Service port with the same destinations share their memory.
    pub destinations: Destinations,
    /// The Service port that it serves.
    pub owner: ServicePortName,
}

/// The properties of a virtual server that most others of the cluster have too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Profile {
    /// Scheduler, flags and affinity.
    pub definition: Arc<ServerDefinition>,
    /// The kind of its frontend.
    pub kind: FrontendKind,
    /// How long a removed destination may keep its connections.
    pub drain: Duration,
    /// The clients that may use it; `None` for a firewall mark, which has no frontend.
    pub admission: Option<Admission>,
    /// How its connections are relayed, if they are.
    pub relay: RelayOptions,
}

impl VirtualServer {
    /// Returns whether `key` is one of the destinations.
    pub fn has_destination(&self, key: &ipvs::DestinationKey) -> bool {
        self.destinations.find(key).is_some()
    }
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
    /// A firewall mark: with external policy Local, clients inside the cluster reach all endpoints, and
    /// clients outside the cluster only those of this node.
    Inside,
}

impl FrontendKind {
    /// Returns the field of the Service that requests such frontends.
    pub fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::ExternalIp => "spec.externalIPs",
            Self::LoadBalancer => "status.loadBalancer.ingress",
            Self::NodePort => "spec.ports[].nodePort",
            Self::Inside => "spec.externalTrafficPolicy",
        }
    }
}

/// The desired state of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// All virtual servers.
    pub virtual_servers: SplitMap<ipvs::ServiceKey, VirtualServer>,
    /// All service addresses to make local, each with its preferred source, if any.
    pub addresses: SplitMap<IpAddr, Option<IpAddr>>,
    /// Whether service addresses need the device `kube-ipvs0`, even if there are none now.
    pub needs_carrier: bool,
    /// The addresses of endpoints on this node.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// The health checks for load balancers, by port of this node.
    pub health_checks: BTreeMap<u16, HealthCheck>,
}

impl Desired {
    /// Returns the firewall mark of clients inside the cluster at the frontend `key`, if they have one.
    pub fn mark(&self, key: &ipvs::ServiceKey) -> Option<u32> {
        let admission = self.virtual_servers.get(key)?.profile.admission.as_ref()?;
        Some(admission.inside.as_ref()?.mark)
    }

    /// Returns the virtual servers that must not exist without packet rules, and their addresses.
    pub fn needing_rules(&self) -> (BTreeSet<ipvs::ServiceKey>, BTreeSet<IpAddr>) {
        let needs_rules = |server: &VirtualServer| {
            let admission = server.profile.admission.as_ref();
            admission.is_some_and(Admission::needs_rules)
        };
        let needing = self.virtual_servers.iter();
        let needing = needing.filter(|(_, server)| needs_rules(server));
        let keys: BTreeSet<_> = needing.map(|(key, _)| key).collect();
        let addresses = keys.iter().filter_map(ipvs::ServiceKey::address).collect();
        (keys, addresses)
    }

    /// Returns the admission of the virtual server `key`, for the packet filter.
    pub fn admission(&self, key: &ipvs::ServiceKey) -> Option<Admission> {
        self.virtual_servers.get(key)?.profile.admission.clone()
    }
}

/// Returns the desired state of the node, and the problems of its input.
pub fn desired(
    snapshot: &Snapshot,
    machine: &Machine,
    config: &PlanConfig,
) -> (Desired, Vec<Problem>) {
    let mut planner = Planner::new(config.clone());
    planner.update(snapshot, machine, Touched::All);
    let problems = planner.problems(snapshot);
    (planner.into_desired(), problems)
}
