//! What this node's kernel should look like, computed from the snapshot.
//!
//! ```text
//! Snapshot ─┐
//! Machine  ─┼─▶ desired() ─▶ (Desired, Vec<Problem>)
//! Config   ─┘
//! ```
//!
//! Pure and total: the same input gives the same output, byte for byte, and bad input gives a
//! [`Problem`] instead of an error.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipvs_netlink as ipvs;

use crate::model::{Cidr, Family, Protocol, Service, ServicePort, ServicePortName, TrafficPolicy};
use crate::problem::Problem;
use crate::store::Snapshot;

mod endpoints;

use endpoints::{EndpointSets, Place};

/// What the operator chose, as far as planning is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name of this node, as endpoints name it.
    pub node_name: Arc<str>,
    /// The scheduler of virtual servers that do not choose one.
    pub scheduler: ipvs::SchedulerName,
    /// Networks whose addresses on this node serve node ports; a family without any uses all of
    /// its addresses.
    pub node_port_addresses: Vec<Cidr>,
    /// How service addresses are made local.
    pub service_addresses: ServiceAddresses,
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
}

/// A virtual server that should exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Its definition.
    pub service: ipvs::Service,
    /// Its destinations, ordered by key, each key once.
    pub destinations: Vec<ipvs::Destination>,
    /// The Service port it exists for.
    pub owner: ServicePortName,
}

/// What should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Every virtual server of ours.
    pub virtual_servers: BTreeMap<ipvs::ServiceKey, VirtualServer>,
    /// Every address to make local, with the preferred source of connections to it, if any.
    pub addresses: BTreeMap<IpAddr, Option<IpAddr>>,
}

/// Plans the node.
pub fn desired(snapshot: &Snapshot, machine: &Machine, config: &Config) -> (Desired, Vec<Problem>) {
    let mut plan = Planner {
        snapshot,
        machine,
        config,
        desired: Desired::default(),
        problems: Vec::new(),
    };
    let mut services: Vec<&Service> = snapshot.services().collect();
    // Of two claims to one frontend the older Service's stands, so that a newcomer can never take
    // an address away from a running one; undated objects come last.
    services.sort_by_key(|service| (service.created.is_none(), &service.created, &service.name));

    // Cluster IPs first: no external address may capture another Service's cluster IP.
    for service in &services {
        plan.cluster_frontends(service);
    }
    for service in &services {
        plan.external_frontends(service);
    }
    for service in &services {
        plan.node_port_frontends(service);
    }
    plan.strange_node_addresses();
    let mut problems: Vec<Problem> = snapshot.problems().cloned().collect();
    problems.append(&mut plan.problems);
    problems.sort();
    (plan.desired, problems)
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    machine: &'a Machine,
    config: &'a Config,
    desired: Desired,
    problems: Vec<Problem>,
}

impl Planner<'_> {
    fn cluster_frontends(&mut self, service: &Service) {
        for &address in &service.cluster_ips {
            for port in &service.ports {
                let field = "spec.clusterIPs";
                self.frontend(
                    service,
                    port,
                    (address, port.port),
                    service.internal_policy,
                    field,
                );
            }
            self.make_local(address);
        }
    }

    fn external_frontends(&mut self, service: &Service) {
        let external = service
            .external_ips
            .iter()
            .map(|ip| (ip, "spec.externalIPs"));
        let ingress = service
            .load_balancer_ips
            .iter()
            .map(|ip| (ip, "status.loadBalancer.ingress"));
        for (&address, field) in external.chain(ingress) {
            for port in &service.ports {
                self.frontend(
                    service,
                    port,
                    (address, port.port),
                    service.external_policy,
                    field,
                );
            }
            self.make_local(address);
        }
    }

    fn node_port_frontends(&mut self, service: &Service) {
        for port in &service.ports {
            let Some(node_port) = port.node_port else {
                continue;
            };
            for family in service.cluster_ips.iter().map(|&ip| Family::from(ip)) {
                for address in self.node_port_addresses(family) {
                    let field = "spec.ports[].nodePort";
                    let frontend = (address, node_port);
                    self.frontend(service, port, frontend, service.external_policy, field);
                }
            }
        }
    }

    /// The addresses of this machine that serve node ports (`--nodeport-addresses`).
    fn node_port_addresses(&self, family: Family) -> Vec<IpAddr> {
        let chosen: Vec<Cidr> = self
            .config
            .node_port_addresses
            .iter()
            .copied()
            .filter(|network| network.family() == family)
            .collect();
        self.machine
            .addresses
            .iter()
            .copied()
            .filter(|&address| Family::from(address) == family)
            .filter(|&address| chosen.is_empty() || chosen.iter().any(|net| net.contains(address)))
            .collect()
    }

    fn frontend(
        &mut self,
        service: &Service,
        port: &ServicePort,
        (address, number): (IpAddr, u16),
        policy: TrafficPolicy,
        field: &str,
    ) {
        let owner = ServicePortName {
            service: service.name.clone(),
            port: port.name.clone(),
        };
        let key = ipvs::ServiceKey::Address {
            protocol: protocol(port.protocol),
            address,
            port: number,
        };
        let vacant = match self.desired.virtual_servers.entry(key) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(taken) if taken.get().owner.service == service.name => return,
            Entry::Occupied(taken) => {
                self.problems.push(Problem::new(
                    format_args!("Service {}", service.name),
                    field,
                    key,
                    format!(
                        "already served for Service {}; skipped",
                        taken.get().owner.service
                    ),
                ));
                return;
            }
        };
        let place = Place {
            node_name: &self.config.node_name,
            zone: self.snapshot.node().and_then(|node| node.zone.as_deref()),
        };
        let sets = EndpointSets::of(self.snapshot, service, port, address.into(), &place);
        let chosen = match policy {
            TrafficPolicy::Cluster => sets.cluster,
            TrafficPolicy::Local => sets.local,
        };
        vacant.insert(VirtualServer {
            service: self::service(key, self.config.scheduler, service.affinity_secs),
            destinations: chosen.into_iter().map(destination).collect(),
            owner,
        });
    }

    /// Says so where the Node object's addresses are none of the machine's.
    fn strange_node_addresses(&mut self) {
        let Some(node) = self.snapshot.node() else {
            return;
        };
        for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let Some(address) = node.address(family) else {
                continue;
            };
            if self.machine.addresses.contains(&address) {
                continue;
            }
            let instead = match self.source(family) {
                Some(source) => format!("come from {source} instead"),
                None => "carry the service address as their source".to_owned(),
            };
            self.problems.push(Problem::new(
                format_args!("Node {}", node.name),
                "status.addresses",
                address,
                format!(
                    "no address of this machine; its connections to {name} service addresses \
                     {instead}"
                ),
            ));
        }
    }

    /// Where connections from this machine to service addresses come from: the node's address, or
    /// else the lowest that the machine has. Never one it has not, which the kernel refuses.
    fn source(&self, family: Family) -> Option<IpAddr> {
        let own = |address: &IpAddr| self.machine.addresses.contains(address);
        let named = self
            .snapshot
            .node()
            .and_then(|node| node.address(family))
            .filter(own);
        named.or_else(|| {
            let mut addresses = self.machine.addresses.iter().copied();
            addresses.find(|&address| Family::from(address) == family)
        })
    }

    /// Makes a service address local, unless it is an address of the machine already.
    fn make_local(&mut self, address: IpAddr) {
        if self.machine.addresses.contains(&address) {
            return;
        }
        let source = match self.config.service_addresses {
            ServiceAddresses::Dummy => None,
            ServiceAddresses::Routes => self.source(address.into()),
        };
        self.desired.addresses.insert(address, source);
    }
}

fn service(
    key: ipvs::ServiceKey,
    scheduler: ipvs::SchedulerName,
    affinity_secs: Option<u32>,
) -> ipvs::Service {
    let mut service = ipvs::Service::new(key, scheduler);
    if let Some(seconds) = affinity_secs {
        service.flags = service.flags | ipvs::ServiceFlags::PERSISTENT;
        service.timeout_secs = seconds;
    }
    // kube-proxy's rule: Maglev hashes source address and port (`--ipvs-scheduler=mh`).
    if scheduler.as_str() == "mh" {
        service.flags = service.flags | ipvs::ServiceFlags::SCHED2;
    }
    service
}

fn destination(endpoint: SocketAddr) -> ipvs::Destination {
    ipvs::Destination::new(endpoint.into(), 1)
}

fn protocol(protocol: Protocol) -> ipvs::Protocol {
    match protocol {
        Protocol::Tcp => ipvs::Protocol::Tcp,
        Protocol::Udp => ipvs::Protocol::Udp,
        Protocol::Sctp => ipvs::Protocol::Sctp,
    }
}
