//! What this node's kernel should look like, computed from the snapshot.
//!
//! ```text
//! Snapshot ─┐
//! Machine  ─┼─▶ desired() ─▶ (Desired, Vec<Problem>)
//! Config   ─┘
//! ```
//!
//! Pure and total: the same input gives the same output, byte for byte, and bad input gives a
//! [`Problem`] instead of an error. [`Planner`] is the same function with a memory: it plans again
//! only the Services that an event touched, and says what came out differently.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::model::ServicePortName;
use crate::problem::Problem;
use crate::store::{Snapshot, Touched};

mod admission;
mod context;
mod endpoints;
mod health;
mod node_ports;
mod planner;
mod service;
mod style;

pub use admission::{Admission, Endpoints, Scope};
pub(crate) use health::HealthCheck;
pub use node_ports::NodePortAddresses;
pub use planner::{Changed, Planner};

/// What the operator chose, as far as planning is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanConfig {
    /// The name of this node, as endpoints name it.
    pub node_name: Arc<str>,
    /// The scheduler of virtual servers that do not choose one.
    pub scheduler: ipvs::SchedulerName,
    /// The addresses of this node that serve node ports.
    pub node_port_addresses: NodePortAddresses,
    /// How service addresses are made local.
    pub service_addresses: ServiceAddresses,
    /// How long a removed endpoint may keep its connections, where the Service does not say.
    pub drain: Duration,
}

/// How the kernel is told that a service address is its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceAddresses {
    /// As `local` routes whose preferred source is the node's address. Linear in their number.
    #[default]
    Routes,
    /// As addresses on the dummy device `kube-ipvs0`, kube-proxy's form. Adding them costs time
    /// quadratic in their number, in the kernel.
    Dummy,
}

/// What planning has to know about the machine itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The addresses on its interfaces; none that exist for Services only, no loopback and no IPv6
    /// link-local ones.
    pub addresses: BTreeSet<IpAddr>,
    /// Its addresses that served node ports before the Node object was known.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// Schedulers that the kernel turned out not to have.
    pub missing_schedulers: BTreeSet<ipvs::SchedulerName>,
}

/// A virtual server that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Its definition.
    pub service: ipvs::Service,
    /// Its destinations, ordered by key, each key once. Shared by the frontends of a Service port
    /// that have the same ones.
    pub destinations: Arc<[ipvs::Destination]>,
    /// The Service port it exists for.
    pub owner: ServicePortName,
    /// The field of the Service that asks for it.
    pub kind: FrontendKind,
    /// How long a removed destination may keep its connections.
    pub drain: Duration,
    /// Who may use it; `None` for the virtual server of a firewall mark, which has no frontend.
    pub admission: Option<Admission>,
}

impl VirtualServer {
    /// Whether `key` is one of the destinations.
    pub fn has_destination(&self, key: &ipvs::DestinationKey) -> bool {
        let order = |destination: &ipvs::Destination| destination.key;
        self.destinations.binary_search_by_key(key, order).is_ok()
    }
}

/// The kinds of frontends that a Service port has, in the order in which they win a contested
/// frontend: no external address may capture another Service's cluster IP.
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
    /// A firewall mark: the way of clients inside the cluster to a frontend whose traffic policy
    /// keeps other clients on this node.
    Inside,
}

impl FrontendKind {
    /// The field of the Service that asks for it.
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

/// What should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Every virtual server of ours.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, VirtualServer>,
    /// Every address to make local, with the preferred source of connections to it, if any.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
    /// The addresses of endpoints on this node.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// What load balancers may ask, by the port of the node that they ask at.
    pub health_checks: BTreeMap<u16, HealthCheck>,
}

impl Desired {
    /// The firewall mark that clients inside the cluster need at `server`, if any.
    pub fn mark(&self, server: &VirtualServer) -> Option<u32> {
        let family = server.service.key.family();
        let mark = server.admission.as_ref()?.inside_mark?;
        let key = ipvs::ServiceKey::Mark { family, mark };
        // Should two Service ports have the same mark, only one of them has its virtual server.
        let inside = self.virtual_servers.get(&key)?;
        (inside.owner == server.owner).then_some(mark)
    }

    /// The virtual servers that not everybody may use (`loadBalancerSourceRanges`), and their
    /// addresses.
    pub fn restricted(&self) -> (BTreeSet<ipvs::ServiceKey>, BTreeSet<IpAddr>) {
        let is_restricted = |server: &VirtualServer| {
            let admission = server.admission.as_ref();
            admission.is_some_and(|admission| admission.source_ranges.is_some())
        };
        let restricted = self.virtual_servers.iter();
        let restricted = restricted.filter(|(_, server)| is_restricted(server));
        let keys: BTreeSet<_> = restricted.map(|(key, _)| *key).collect();
        let addresses = keys.iter().filter_map(ipvs::ServiceKey::address).collect();
        (keys, addresses)
    }

    /// Returns the admission of the virtual server `key`, for the packet filter.
    pub fn admission(&self, key: &ipvs::ServiceKey) -> Option<Admission> {
        let server = self.virtual_servers.get(key)?;
        let admission = server.admission.clone()?;
        Some(Admission {
            inside_mark: self.mark(server),
            ..admission
        })
    }
}

/// Plans the node.
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
