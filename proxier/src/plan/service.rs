//! What one Service asks of this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::context::Context;
use super::endpoints::{Chosen, EndpointSets};
use super::health::HealthCheck;
use super::style::Style;
use super::{Admission, Endpoints, FrontendKind, Scope, VirtualServer};
use crate::frontend::Frontend;
use crate::model::{
    Family, Networks, Protocol, Service, ServicePort, ServicePortName, TrafficPolicy,
};
use crate::problem::Problem;

/// What a Service asks for; others may have an older claim to the same frontends.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Virtual servers, each key once.
    pub(super) servers: Vec<VirtualServer>,
    /// Addresses to make local, each once.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses of endpoints on this node.
    pub(super) local_endpoints: BTreeSet<IpAddr>,
    /// The answer to load balancers, and the port they ask at.
    pub(super) health_check: Option<(u16, HealthCheck)>,
    /// What was worked around.
    pub(super) problems: Vec<Problem>,
}

/// Works out what `service` asks for. Depends on nothing but its arguments.
pub(super) fn ask(service: &Service, context: &Context<'_>) -> Asked {
    let mut asked = Asked::default();
    if let Some(port) = service.health_check_node_port {
        asked.health_check = Some((port, health_check(service, context)));
    }
    let mut asking = Asking {
        service,
        context,
        style: Style::of(service, context, &mut asked.problems),
        asked,
    };
    for port in &service.ports {
        for family in families(service) {
            asking.port(port, family);
        }
    }
    for &address in addresses(service) {
        asking.make_local(address);
    }
    asking.asked
}

/// The families of `service`: each of its addresses is of one that it has a cluster IP of.
fn families(service: &Service) -> impl Iterator<Item = Family> + '_ {
    service.cluster_ips.iter().map(|&ip| Family::from(ip))
}

/// The answer to load balancers. Collects endpoints once more; few Services have such a port.
fn health_check(service: &Service, context: &Context<'_>) -> HealthCheck {
    let place = context.place();
    let count = |family| {
        let mut addresses = BTreeSet::new();
        for port in &service.ports {
            let sets = EndpointSets::of(context.snapshot, service, port, family, &place);
            if sets.is_local_ready {
                let serving = sets.local.iter().filter(|chosen| chosen.weight > 0);
                addresses.extend(serving.map(|chosen| chosen.address.ip()));
            }
        }
        (family, addresses.len())
    };
    HealthCheck {
        service: service.name.clone(),
        local_endpoints: families(service).map(count).collect(),
    }
}

fn addresses(service: &Service) -> impl Iterator<Item = &IpAddr> {
    let external = service
        .external_ips
        .iter()
        .chain(&service.load_balancer_ips);
    service.cluster_ips.iter().chain(external)
}

struct Asking<'a> {
    service: &'a Service,
    context: &'a Context<'a>,
    style: Style,
    asked: Asked,
}

/// The destinations of one port and family.
struct Destinations {
    cluster: Arc<[ipvs::Destination]>,
    local: Arc<[ipvs::Destination]>,
    /// The sources that may use load-balancer addresses; `None` = all.
    source_ranges: Option<Networks>,
    /// The firewall mark of clients inside the cluster, where policy Local needs one.
    mark: Option<u32>,
}

impl Asking<'_> {
    fn port(&mut self, port: &ServicePort, family: Family) {
        let (service, context) = (self.service, self.context);
        let destinations = self.destinations(port, family);
        let of_family = |address: &&IpAddr| Family::from(**address) == family;

        for &address in service.cluster_ips.iter().filter(of_family) {
            let at = (address, port.port);
            self.frontend(port, FrontendKind::ClusterIp, at, &destinations);
        }
        for &address in service.external_ips.iter().filter(of_family) {
            let at = (address, port.port);
            self.frontend(port, FrontendKind::ExternalIp, at, &destinations);
        }
        for &address in service.load_balancer_ips.iter().filter(of_family) {
            let at = (address, port.port);
            self.frontend(port, FrontendKind::LoadBalancer, at, &destinations);
        }
        if let Some(node_port) = port.node_port {
            for &address in context.node_port_addresses(family) {
                let at = (address, node_port);
                self.frontend(port, FrontendKind::NodePort, at, &destinations);
            }
        }
        if let Some(mark) = destinations.mark {
            let key = ipvs::ServiceKey::Mark {
                family: ipvs_family(family),
                mark,
            };
            self.server(port, FrontendKind::Inside, key, destinations.cluster, None);
        }
    }

    fn destinations(&mut self, port: &ServicePort, family: Family) -> Destinations {
        let place = self.context.place();
        let sets = EndpointSets::of(self.context.snapshot, self.service, port, family, &place);
        // Whatever the endpoints are: if the virtual server of the mark were deleted when both sets
        // become equal, the connections through it would be reset.
        let is_split = self.is_split(port, family);
        let local = sets.local.iter().map(|chosen| chosen.address.ip());
        self.asked.local_endpoints.extend(local);
        let ranges = self.service.source_ranges.iter().copied();
        let ranges = Networks::new(family, ranges);
        Destinations {
            // Ranges of the other family only leave this one open.
            source_ranges: Some(ranges).filter(|ranges| !ranges.is_empty()),
            mark: is_split.then(|| mark(&self.owner(port), port.protocol, family)),
            cluster: sets.cluster.into_iter().map(destination).collect(),
            local: sets.local.into_iter().map(destination).collect(),
        }
    }

    /// Whether there is a frontend that serves clients outside the cluster from this node only.
    fn is_split(&self, port: &ServicePort, family: Family) -> bool {
        let (service, context) = (self.service, self.context);
        let of_family = |ip: &IpAddr| Family::from(*ip) == family;
        let external = &service.external_ips;
        let mut external = external.iter().chain(&service.load_balancer_ips);
        let has_node_port =
            || port.node_port.is_some() && !context.node_port_addresses(family).is_empty();
        service.external_policy == TrafficPolicy::Local
            && (external.any(of_family) || has_node_port())
    }

    fn frontend(
        &mut self,
        port: &ServicePort,
        kind: FrontendKind,
        (address, number): (IpAddr, u16),
        destinations: &Destinations,
    ) {
        let policy = match kind {
            FrontendKind::ClusterIp => self.service.internal_policy,
            _ => self.service.external_policy,
        };
        let chosen = match policy {
            TrafficPolicy::Cluster => &destinations.cluster,
            TrafficPolicy::Local => &destinations.local,
        };
        let scope = match kind {
            FrontendKind::ClusterIp => Scope::Internal,
            _ => Scope::External,
        };
        let is_split = scope == Scope::External && policy == TrafficPolicy::Local;
        // `spec.externalIPs` may name a load-balancer address too; the ranges hold for the address.
        let is_ranged = scope == Scope::External
            && kind != FrontendKind::NodePort
            && self.service.load_balancer_ips.contains(&address);
        let admission = Admission {
            scope,
            policy,
            endpoints: if serve(chosen) {
                Endpoints::Usable
            } else if serve(&destinations.cluster) {
                Endpoints::RemoteOnly
            } else {
                Endpoints::None
            },
            source_ranges: destinations.source_ranges.clone().filter(|_| is_ranged),
            inside_mark: destinations.mark.filter(|_| is_split),
        };
        let frontend = Frontend {
            address,
            protocol: port.protocol,
            port: number,
        };
        self.server(port, kind, frontend.into(), chosen.clone(), Some(admission));
    }

    fn server(
        &mut self,
        port: &ServicePort,
        kind: FrontendKind,
        key: ipvs::ServiceKey,
        destinations: Arc<[ipvs::Destination]>,
        admission: Option<Admission>,
    ) {
        // An address that is named twice is served once.
        let is_known = |server: &VirtualServer| server.service.key == key;
        if self.asked.servers.iter().any(is_known) {
            return;
        }
        let server = VirtualServer {
            service: self.style.service(key),
            destinations,
            owner: self.owner(port),
            kind,
            drain: self.drain(port),
            admission,
        };
        self.asked.servers.push(server);
    }

    /// TCP connections end by themselves, and their clients connect again when they are cut. A UDP
    /// client may send from one port for ever, so it must not wait for its flow to end; nor do SCTP
    /// associations, as with kube-proxy.
    fn drain(&self, port: &ServicePort) -> Duration {
        match port.protocol {
            Protocol::Tcp => self.style.drain,
            Protocol::Udp | Protocol::Sctp => Duration::ZERO,
        }
    }

    fn owner(&self, port: &ServicePort) -> ServicePortName {
        ServicePortName {
            service: self.service.name.clone(),
            port: port.name.clone(),
        }
    }

    /// Makes a service address local, unless it is an address of the machine already.
    fn make_local(&mut self, address: IpAddr) {
        let is_known = self.asked.addresses.contains(&address);
        if !is_known && !self.context.machine.addresses.contains(&address) {
            self.asked.addresses.push(address);
        }
    }
}

/// The firewall mark of a Service port: a hash of its name (FNV-1a), so that it is the same in
/// every run and depends on no other Service.
///
/// Packets carry it for the moment between our hook and IPVS only, so that every value but 0 is
/// free. Should two Service ports ever meet in one, the older one has it.
pub(crate) fn mark(owner: &ServicePortName, protocol: Protocol, family: Family) -> u32 {
    let text = format!("{owner}/{protocol}/{family:?}");
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

/// Whether some of `destinations` get new connections.
pub(crate) fn serve(destinations: &[ipvs::Destination]) -> bool {
    destinations
        .iter()
        .any(|destination| destination.weight > 0)
}

fn destination(chosen: Chosen) -> ipvs::Destination {
    ipvs::Destination::new(chosen.address.into(), chosen.weight.into())
}

fn ipvs_family(family: Family) -> ipvs::Family {
    match family {
        Family::V4 => ipvs::Family::V4,
        Family::V6 => ipvs::Family::V6,
    }
}
