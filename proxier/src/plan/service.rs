//! Derives the requirements of one Service on this node.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::context::Context;
use super::endpoints::{EndpointSets, SelectedEndpoint};
use super::health::HealthCheck;
use super::options::ServerOptions;
use super::relay_options::SOURCE_ADDRESS;
use super::{Admission, Availability, FrontendKind, MarkedClients, Profile, Scope, VirtualServer};
use crate::definition::ServerDefinition;
use crate::destinations::Destinations;
use crate::frontend::Frontend;
use crate::model::{
    EndpointSlice, Family, Networks, Protocol, Service, ServicePort, ServicePortName,
    SourceAddress, TrafficPolicy,
};
use crate::problem::Problem;

/// The number of virtual servers from which a set of their keys costs less than a search. The API server accepts
/// Services with 40,000 ports.
const FEW: usize = 32;

/// The port at which IPVS expects the control connections of FTP (`FTPPORT`).
const FTP: u16 = 21;

/// The requirements of a Service. It does not get a frontend that an older Service requires too.
#[derive(Debug, Default)]
pub(super) struct Requirements {
    /// Virtual servers, each key once.
    pub(super) servers: Vec<(ipvs::ServiceKey, VirtualServer)>,
    /// Addresses to make local, each once.
    pub(super) addresses: Vec<IpAddr>,
    /// Addresses of endpoints on this node.
    pub(super) local_endpoints: BTreeSet<IpAddr>,
    /// The health check for load balancers, and its port.
    pub(super) health_check: Option<(u16, HealthCheck)>,
    /// The problems of its annotations and addresses.
    pub(super) problems: Vec<Problem>,
    /// Its addresses that other machines have.
    pub(super) elsewhere: Vec<IpAddr>,
}

/// Returns the requirements of `service`.
///
/// They depend on the arguments only, not on other Services: [`super::Planner`] relies on that to
/// replan one Service alone.
pub(super) fn requirements(service: &Service, context: &Context<'_>) -> Requirements {
    let mut requirements = Requirements::default();
    let slices: Vec<EndpointSlice> = context.snapshot.slices(&service.name).collect();
    if let Some(port) = service.health_check_node_port {
        requirements.health_check = Some((port, health_check(service, &slices, context)));
    }
    let Requirements {
        problems,
        elsewhere,
        ..
    } = &mut requirements;
    let is_own = |address: &IpAddr| context.is_own(address);
    let (service, excluded) = (context.elsewhere).exclude(service, &slices, is_own, problems);
    *elsewhere = excluded;
    let service = &*service;
    let mut builder = RequirementsBuilder {
        service,
        slices: &slices,
        context,
        options: ServerOptions::of(service, context, &mut requirements.problems),
        requirements,
        keys: HashSet::new(),
    };
    for port in &service.ports {
        if context.machine.unsupported.contains(&port.protocol) {
            builder.reject_protocol(port);
            continue;
        }
        for family in families(service) {
            builder.port(port, family);
        }
    }
    for &address in addresses(service) {
        builder.make_local(address);
    }
    builder.check_sources();
    builder.requirements
}

/// Returns the families of `service`: those of its cluster IPs.
///
/// The parser drops external addresses of other families: the Service has no endpoints for them.
fn families(service: &Service) -> impl Iterator<Item = Family> + '_ {
    service.cluster_ips.iter().map(|&ip| Family::from(ip))
}

/// Returns the health check of `service`.
///
/// Selects the endpoints a second time. Keeping them would be more code, and few Services have a
/// health-check port.
fn health_check(service: &Service, slices: &[EndpointSlice], context: &Context<'_>) -> HealthCheck {
    let topology = context.topology();
    let count = |family| {
        let mut addresses = BTreeSet::new();
        for port in &service.ports {
            let sets = EndpointSets::of(slices, service, port, family, &topology);
            if sets.is_local_ready {
                let serving = sets.local.iter().filter(|endpoint| endpoint.weight > 0);
                addresses.extend(serving.map(|endpoint| endpoint.address.ip()));
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

/// Collects the requirements of one Service.
struct RequirementsBuilder<'a> {
    service: &'a Service,
    slices: &'a [EndpointSlice],
    context: &'a Context<'a>,
    options: ServerOptions,
    requirements: Requirements,
    /// The keys of all virtual servers, if there are [`FEW`] or more.
    keys: HashSet<ipvs::ServiceKey>,
}

/// The destinations of one port and family, for each traffic policy.
struct PortDestinations {
    cluster: Destinations,
    local: Destinations,
    /// The sources that may use load-balancer addresses; `None` if all may.
    source_ranges: Option<Networks>,
    /// The way of clients inside the cluster, if they may reach other endpoints than clients outside.
    inside: Option<MarkedClients>,
}

impl RequirementsBuilder<'_> {
    fn reject_protocol(&mut self, port: &ServicePort) {
        self.requirements.problems.push(Problem::new(
            format_args!("Service {}", self.service.name),
            "spec.ports[].protocol",
            port.protocol,
            format!(
                "cannot be relayed by the userspace dataplane: port {} is not served on this node",
                port.port
            ),
        ));
    }

    /// Adds the virtual servers of one port and family.
    fn port(&mut self, port: &ServicePort, family: Family) {
        let (service, context) = (self.service, self.context);
        let destinations = self.destinations(port, family);
        let of_family = |address: &&IpAddr| Family::from(**address) == family;

        // In order of precedence, because `add` keeps the first virtual server of a frontend.
        for &address in service.cluster_ips.iter().filter(of_family) {
            let socket = SocketAddr::new(address, port.port);
            self.frontend(port, FrontendKind::ClusterIp, socket, &destinations);
        }
        for &address in service.external_ips.iter().filter(of_family) {
            let socket = SocketAddr::new(address, port.port);
            self.frontend(port, FrontendKind::ExternalIp, socket, &destinations);
        }
        for &address in service.load_balancer_ips.iter().filter(of_family) {
            let socket = SocketAddr::new(address, port.port);
            self.frontend(port, FrontendKind::LoadBalancer, socket, &destinations);
        }
        if let Some(node_port) = port.node_port {
            for &address in context.node_port_addresses(family) {
                let socket = SocketAddr::new(address, node_port);
                self.frontend(port, FrontendKind::NodePort, socket, &destinations);
            }
        }
        if let Some(MarkedClients { mark, .. }) = destinations.inside {
            let key = ipvs::ServiceKey::Mark { family, mark };
            let definition = self.options.without_persistence(family);
            let profile = self.profile(port, FrontendKind::Inside, definition, None);
            self.add(port, key, profile, destinations.cluster);
        }
    }

    fn destinations(&mut self, port: &ServicePort, family: Family) -> PortDestinations {
        let topology = self.context.topology();
        let sets = EndpointSets::of(self.slices, self.service, port, family, &topology);
        // A mark is needed even if both sets are equal. If it disappeared with the last remote
        // endpoint, the kernel would reset the connections through its virtual server.
        let needs_mark = self.has_local_external(port, family);
        // The packet rules masquerade the connections of these endpoints to themselves.
        let here: BTreeSet<IpAddr> = (sets.local.iter())
            .map(|endpoint| endpoint.address.ip())
            .collect();
        self.requirements.local_endpoints.extend(&here);
        let ranges = self.service.source_ranges.iter().copied();
        let ranges = Networks::new(family, ranges);
        PortDestinations {
            // Ranges of the other family restrict that family only.
            source_ranges: Some(ranges).filter(|ranges| !ranges.is_empty()),
            inside: needs_mark.then(|| MarkedClients {
                mark: (self.context.machine.marks).of(&self.owner(port), port.protocol, family),
                here: here.into_iter().collect(),
            }),
            cluster: sets.cluster.into_iter().map(destination).collect(),
            local: sets.local.into_iter().map(destination).collect(),
        }
    }

    /// Returns whether `port` has a frontend for clients outside the cluster with policy Local.
    ///
    /// Only then may clients inside and outside the cluster reach different endpoints.
    fn has_local_external(&self, port: &ServicePort, family: Family) -> bool {
        let (service, context) = (self.service, self.context);
        let of_family = |ip: &IpAddr| Family::from(*ip) == family;
        let external = &service.external_ips;
        let mut external = external.iter().chain(&service.load_balancer_ips);
        let has_node_port =
            || port.node_port.is_some() && !context.node_port_addresses(family).is_empty();
        service.external_policy == TrafficPolicy::Local
            && (external.any(of_family) || has_node_port())
    }

    /// Adds the virtual server of one frontend.
    fn frontend(
        &mut self,
        port: &ServicePort,
        kind: FrontendKind,
        socket: SocketAddr,
        destinations: &PortDestinations,
    ) {
        if let Some(device) = self.context.machine.yielded.get(&socket.ip()) {
            return self.yield_to(device, kind, socket.ip());
        }
        // All clients of a loopback address are processes of this node, which are inside the cluster.
        let is_localhost = kind == FrontendKind::NodePort && socket.ip().is_loopback();
        let policy = match kind {
            FrontendKind::ClusterIp => self.service.internal_policy,
            _ if is_localhost => TrafficPolicy::Cluster,
            _ => self.service.external_policy,
        };
        let destinations_of_policy = match policy {
            TrafficPolicy::Cluster => &destinations.cluster,
            TrafficPolicy::Local => &destinations.local,
        };
        let scope = match kind {
            FrontendKind::ClusterIp => Scope::Internal,
            FrontendKind::NodePort if is_localhost => Scope::Internal,
            FrontendKind::NodePort => Scope::NodePort,
            _ => Scope::External,
        };
        let is_local_external = scope != Scope::Internal && policy == TrafficPolicy::Local;
        // As in kube-proxy, the ranges apply to load-balancer addresses only. `spec.externalIPs` may
        // contain the same address; its frontend must then have the ranges, too.
        let has_ranges =
            scope == Scope::External && self.service.load_balancer_ips.contains(&socket.ip());
        let admission = Admission {
            scope,
            policy,
            endpoints: if accept_connections(destinations_of_policy) {
                Availability::Usable
            } else if accept_connections(&destinations.cluster) {
                Availability::RemoteOnly
            } else {
                Availability::None
            },
            source_ranges: destinations.source_ranges.clone().filter(|_| has_ranges),
            inside: destinations.inside.clone().filter(|_| is_local_external),
        };
        let frontend = Frontend {
            address: socket.ip(),
            protocol: port.protocol,
            port: socket.port(),
        };
        let key = ipvs::ServiceKey::from(frontend);
        if kind != FrontendKind::ClusterIp && self.context.machine.foreign.contains(&key) {
            let message = "has a virtual server of another program, which is left alone: this Service is not served \
                           there. Delete that virtual server, or give the Service another address or port";
            return self.problem(kind.field(), frontend, message.to_owned());
        }
        let definition = self.definition(&frontend);
        let profile = self.profile(port, kind, definition, Some(admission));
        self.add(port, key, profile, destinations_of_policy.clone());
    }

    /// Reports that `device` has `address`, once for each address.
    ///
    /// A virtual server there would take the connections of the program behind the device, because IPVS
    /// gets packets before local sockets do.
    fn yield_to(&mut self, device: &str, kind: FrontendKind, address: IpAddr) {
        let message = format!(
            "is an address of the device {device}, whose program serves it (--yield-devices); no virtual \
             server is programmed there while the device has it"
        );
        self.problem(kind.field(), address, message);
    }

    /// Reports endpoints that cannot see clients' addresses although the Service asks for it.
    ///
    /// The message has no number of them: each change of an endpoint would be another Problem.
    fn check_sources(&mut self) {
        let Requirements {
            servers,
            local_endpoints,
            problems,
            ..
        } = &mut self.requirements;
        if self.options.relay.source == SourceAddress::Node {
            return;
        }
        let is_pod_here = |destination: ipvs::Destination| {
            let address = destination.key.address;
            let is_of_node = address.is_loopback() || self.context.machine.has(&address);
            local_endpoints.contains(&address) && !is_of_node
        };
        // With policy Local for clients outside, clients inside reach all endpoints whatever the operator does.
        let frontends = servers.iter().map(|(_, server)| server);
        let frontends = frontends.filter(|it| it.profile.kind != FrontendKind::Inside);
        let mut destinations = frontends.flat_map(|server| server.destinations.iter());
        if !destinations.all(is_pod_here) {
            let message = "has no effect for endpoints on other nodes, nor for processes of this node: their answers to a \
                           client would not return through this node, so they see its address; with the traffic \
                           policies Local, all endpoints are on this node";
            problems.push(Problem::new(
                format_args!("Service {}", self.service.name),
                SOURCE_ADDRESS,
                "client",
                message.to_owned(),
            ));
        }
    }

    /// Returns whether the Service has no virtual server with this key yet.
    fn is_new(&mut self, key: ipvs::ServiceKey) -> bool {
        let servers = &self.requirements.servers;
        if servers.len() < FEW {
            return !servers.iter().any(|(known, _)| *known == key);
        }
        if self.keys.is_empty() {
            self.keys.extend(servers.iter().map(|(known, _)| *known));
        }
        self.keys.insert(key)
    }

    /// Adds a virtual server of `port`, unless the Service has one with the same key.
    ///
    /// An external IP may equal a load-balancer address of the same Service.
    fn add(
        &mut self,
        port: &ServicePort,
        key: ipvs::ServiceKey,
        profile: Profile,
        destinations: Destinations,
    ) {
        if !self.is_new(key) {
            return;
        }
        let server = VirtualServer {
            profile: Arc::new(profile),
            destinations,
            owner: self.owner(port),
        };
        self.requirements.servers.push((key, server));
    }

    /// Returns the definition of the virtual server at `frontend`.
    fn definition(&mut self, frontend: &Frontend) -> ServerDefinition {
        let family = frontend.family();
        // With persistence, IPVS' rule for FTP takes each TCP packet to an unprivileged port of the address that
        // has no virtual server (`ip_vs_service_find`). At service addresses, packet rules refuse other ports.
        let is_ftp = frontend.protocol == Protocol::Tcp && frontend.port == FTP;
        if !is_ftp || !self.context.machine.has(&frontend.address) || !self.options.has_affinity() {
            return self.options.definition(family);
        }
        let message = format!(
            "is by the hash of the client's address at {frontend}: there, affinity with a timeout would take \
             the connections to other ports of this node's address"
        );
        self.problem("spec.sessionAffinity", "ClientIP", message);
        self.options.without_persistence(family)
    }

    /// Reports a problem of the Service, once.
    fn problem(&mut self, field: &str, value: impl fmt::Display, message: String) {
        let object = format_args!("Service {}", self.service.name);
        let problem = Problem::new(object, field, value, message);
        let problems = &mut self.requirements.problems;
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    fn profile(
        &self,
        port: &ServicePort,
        kind: FrontendKind,
        definition: ServerDefinition,
        admission: Option<Admission>,
    ) -> Profile {
        Profile {
            definition: Arc::new(definition),
            kind,
            drain: self.drain(port),
            admission,
            relay: self.options.relay.on(port.protocol),
        }
    }

    /// Returns how long removed destinations of `port` may keep their connections.
    ///
    /// Only TCP drains: its connections end. A UDP client may send from one port for ever, and would
    /// keep a removed endpoint for ever. SCTP associations do not drain in kube-proxy, either.
    fn drain(&self, port: &ServicePort) -> Duration {
        match port.protocol {
            Protocol::Tcp => self.options.drain,
            Protocol::Udp | Protocol::Sctp => Duration::ZERO,
        }
    }

    fn owner(&self, port: &ServicePort) -> ServicePortName {
        ServicePortName {
            service: self.service.name.clone(),
            port: port.name.clone(),
        }
    }

    /// Adds a local address, unless the machine has it on an interface, or another program serves all its ports.
    ///
    /// An external IP may be an address of the node itself. The kernel has a local route to it already.
    fn make_local(&mut self, address: IpAddr) {
        let is_at = |key: &ipvs::ServiceKey| key.address() == Some(address);
        let mut servers = self.requirements.servers.iter();
        let is_foreign = self.context.machine.foreign.iter().any(is_at);
        if is_foreign && !servers.any(|(key, _)| is_at(key)) {
            return;
        }
        let is_known = self.requirements.addresses.contains(&address);
        if !is_known && !self.context.machine.has(&address) {
            self.requirements.addresses.push(address);
        }
    }
}

/// Returns whether any destination has a weight above 0.
fn accept_connections(destinations: &Destinations) -> bool {
    destinations
        .iter()
        .any(|destination| destination.weight > 0)
}

fn destination(endpoint: SelectedEndpoint) -> ipvs::Destination {
    ipvs::Destination::new(endpoint.address.into(), endpoint.weight.into())
}
