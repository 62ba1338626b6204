//! Derives the requirements of one Service on this node.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::endpoints::EndpointSets;
use super::health::HealthCheck;
use super::options::ServiceOptions;
use super::relay_options::SOURCE_ADDRESS;
use super::{
    Access, Availability, Balancing, Endpoints, FrontendKind, FrontendPlan, InsidePlan, Profile,
    Scope, SelectedEndpoint,
};
use crate::cluster::model::{
    EndpointSlice, Family, Networks, Protocol, Service, ServicePort, ServicePortName,
    SourceAddress, TrafficPolicy,
};
use crate::cluster::problem::Problem;
use crate::plan::frontend::Frontend;

/// The number of frontends from which a set of them costs less than a search. The API server accepts
/// Services with 40,000 ports.
const FEW: usize = 32;

/// The port at which IPVS expects the control connections of FTP (`FTPPORT`).
const FTP: u16 = 21;

/// The requirements of a Service. It does not get a frontend that an older Service requires too.
#[derive(Debug, Default)]
pub(super) struct Requirements {
    /// Frontends, each once.
    pub(super) frontends: Vec<(Frontend, FrontendPlan)>,
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
    let slices: Vec<&EndpointSlice> = context.snapshot.slices(&service.name).collect();
    if let Some(port) = service.health_check_node_port {
        requirements.health_check = Some((port, health_check(service, &slices, context)));
    }
    let Requirements {
        problems,
        elsewhere,
        ..
    } = &mut requirements;
    let is_own = |address: &IpAddr| context.is_own(address);
    let service = context.config.external_ranges.restrict(service, problems);
    let (service, excluded) = (context.elsewhere).exclude(&service, &slices, is_own, problems);
    *elsewhere = excluded;
    let service = &*service;
    let mut builder = RequirementsBuilder {
        service,
        slices: &slices,
        context,
        options: ServiceOptions::of(service, context, &mut requirements.problems),
        requirements,
        known: HashSet::new(),
    };
    for port in &*service.ports {
        if context.capabilities.unsupported.contains(&port.protocol) {
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
    builder.report_silence();
    let mut requirements = builder.requirements;
    let siblings = requirements.frontends.len().next_power_of_two();
    for (_, plan) in &mut requirements.frontends {
        Arc::make_mut(&mut plan.profile).siblings = siblings;
    }
    requirements
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
fn health_check(
    service: &Service,
    slices: &[&EndpointSlice],
    context: &Context<'_>,
) -> HealthCheck {
    let topology = context.topology();
    let count = |family| {
        let mut addresses = BTreeSet::new();
        for port in &*service.ports {
            let sets = EndpointSets::of(
                slices,
                service,
                port,
                family,
                (&topology, context.weighing(service)),
                0,
            );
            if sets.is_local_ready {
                let serving = sets.local.iter().filter(|endpoint| endpoint.weight > 0);
                addresses.extend(serving.map(|endpoint| endpoint.address));
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
    let external = service.external();
    let external = (external.external_ips.iter()).chain(&external.load_balancer_ips);
    service.cluster_ips.iter().chain(external)
}

/// Collects the requirements of one Service.
struct RequirementsBuilder<'a> {
    service: &'a Service,
    slices: &'a [&'a EndpointSlice],
    context: &'a Context<'a>,
    options: ServiceOptions,
    requirements: Requirements,
    /// All frontends, if there are [`FEW`] or more.
    known: HashSet<Frontend>,
}

/// The endpoints of one port and family, for each traffic policy.
struct PortEndpoints {
    cluster: Endpoints,
    local: Endpoints,
    /// The sources that may use load-balancer addresses; `None` if all may.
    source_ranges: Option<Networks>,
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

    /// Adds the frontends of one port and family.
    fn port(&mut self, port: &ServicePort, family: Family) {
        let (service, context) = (self.service, self.context);
        let external = service.external();
        let endpoints = self.endpoints(port, family);
        let of_family = |address: &&IpAddr| Family::from(**address) == family;

        // In order of precedence, because `add` keeps the first plan of a frontend.
        for (kind, addresses) in [
            (FrontendKind::ClusterIp, &*service.cluster_ips),
            (FrontendKind::ExternalIp, &external.external_ips),
            (FrontendKind::LoadBalancer, &external.load_balancer_ips),
        ] {
            for &address in addresses.iter().filter(of_family) {
                let socket = SocketAddr::new(address, port.port);
                self.frontend(port, kind, socket, &endpoints);
            }
        }
        if let Some(node_port) = port.node_port {
            for &address in context.node_port_addresses(family) {
                let socket = SocketAddr::new(address, node_port);
                self.frontend(port, FrontendKind::NodePort, socket, &endpoints);
            }
        }
    }

    fn endpoints(&mut self, port: &ServicePort, family: Family) -> PortEndpoints {
        let topology = self.context.topology();
        let sets = EndpointSets::of(
            self.slices,
            self.service,
            port,
            family,
            (&topology, self.context.weighing(self.service)),
            self.options.most_connections,
        );
        // A dataplane masquerades the connections of these endpoints to themselves.
        let here = sets.local.iter().map(|endpoint| endpoint.address);
        self.requirements.local_endpoints.extend(here);
        let ranges = self.service.external().source_ranges.iter().copied();
        let ranges = Networks::new(family, ranges);
        PortEndpoints {
            // Ranges of the other family restrict that family only.
            source_ranges: Some(ranges).filter(|ranges| !ranges.is_empty()),
            cluster: sets.cluster.into(),
            local: sets.local.into(),
        }
    }

    /// Adds one frontend.
    fn frontend(
        &mut self,
        port: &ServicePort,
        kind: FrontendKind,
        socket: SocketAddr,
        endpoints: &PortEndpoints,
    ) {
        if let Some(device) = self.context.machine.yielded.get(&socket.ip()) {
            return self.yield_to(device, kind, socket.ip());
        }
        // All clients of a loopback address are processes of this node, which are inside the cluster.
        let is_localhost = kind == FrontendKind::NodePort && socket.ip().is_loopback();
        // Only a relay serves them, and no relay has SCTP.
        if is_localhost && port.protocol == Protocol::Sctp {
            return;
        }
        let policy = match kind {
            FrontendKind::ClusterIp => self.service.internal_policy,
            _ if is_localhost => TrafficPolicy::Cluster,
            _ => self.service.external_policy,
        };
        let endpoints_of_policy = match policy {
            TrafficPolicy::Cluster => &endpoints.cluster,
            TrafficPolicy::Local => &endpoints.local,
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
        let balanced = &self.service.external().load_balancer_ips;
        let has_ranges = scope == Scope::External && balanced.contains(&socket.ip());
        let access = Access {
            scope,
            policy,
            endpoints: if accept_connections(endpoints_of_policy) {
                Availability::Usable
            } else if accept_connections(&endpoints.cluster) {
                Availability::RemoteOnly
            } else {
                Availability::None
            },
            source_ranges: endpoints.source_ranges.clone().filter(|_| has_ranges),
        };
        let frontend = Frontend {
            address: socket.ip(),
            protocol: port.protocol,
            port: socket.port(),
        };
        let foreign = &self.context.capabilities.foreign;
        if kind != FrontendKind::ClusterIp && foreign.contains(&frontend) {
            let message = "has a virtual server of another program, which is left alone: this Service is not served \
                           there. Delete that virtual server, or give the Service another address or port";
            return self.problem(kind.field(), frontend, message.to_owned());
        }
        // Clients inside are distinguished even if both lists are equal. Otherwise a dataplane would end their
        // connections when the last remote endpoint disappears.
        let inside = is_local_external.then(|| {
            Box::new(InsidePlan {
                balancing: self.options.without_timeout(self.context).clone(),
                endpoints: endpoints.cluster.clone(),
            })
        });
        let profile = Profile {
            kind,
            access,
            balancing: self.balancing(&frontend),
            drain: self.drain(port),
            relay: self.options.relay.on(port.protocol),
            // Known when all frontends are.
            siblings: 1,
        };
        let plan = FrontendPlan {
            profile: Arc::new(profile),
            endpoints: endpoints_of_policy.clone(),
            inside,
            owner: self.owner(port),
        };
        self.add(frontend, plan);
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
            frontends,
            local_endpoints,
            problems,
            ..
        } = &mut self.requirements;
        if self.options.relay.source == SourceAddress::Node {
            return;
        }
        let is_pod_here = |endpoint: &SelectedEndpoint| {
            let address = endpoint.address;
            let is_of_node = address.is_loopback() || self.context.machine.has(&address);
            local_endpoints.contains(&address) && !is_of_node
        };
        // With policy Local for clients outside, clients inside reach all endpoints whatever the operator does.
        let mut endpoints = frontends.iter().flat_map(|(_, plan)| plan.endpoints.iter());
        if !endpoints.all(is_pod_here) {
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

    /// Reports endpoints that do not answer.
    fn report_silence(&mut self) {
        let (service, context) = (self.service, self.context);
        let silent = context.machine.standings.silent_of(&service.name);
        let listed = || self.slices.iter().flat_map(|slice| &slice.endpoints);
        let is_listed = |address: &&IpAddr| listed().any(|endpoint| endpoint.address == **address);
        let silent: Vec<&IpAddr> = silent.into_iter().flatten().filter(is_listed).collect();
        for address in silent {
            let message = "answered none of its last connections from this node, and gets no new ones for a while unless no \
                           other endpoint is left (ipvs-proxier.io/passive-health)";
            self.problem("endpoints", address, message.to_owned());
        }
    }

    /// Returns whether the Service does not have the frontend yet.
    fn is_new(&mut self, frontend: Frontend) -> bool {
        let frontends = &self.requirements.frontends;
        if frontends.len() < FEW {
            return !frontends.iter().any(|(known, _)| *known == frontend);
        }
        if self.known.is_empty() {
            self.known.extend(frontends.iter().map(|(known, _)| *known));
        }
        self.known.insert(frontend)
    }

    /// Adds a frontend, unless the Service has it.
    ///
    /// An external IP may equal a load-balancer address of the same Service.
    fn add(&mut self, frontend: Frontend, plan: FrontendPlan) {
        if self.is_new(frontend) {
            self.requirements.frontends.push((frontend, plan));
        }
    }

    /// Returns how the connections to `frontend` are spread.
    fn balancing(&mut self, frontend: &Frontend) -> Balancing {
        // With persistence, IPVS' rule for FTP takes each TCP packet to an unprivileged port of the address that
        // has no virtual server (`ip_vs_service_find`). At service addresses, packet rules refuse other ports.
        let is_ftp = frontend.protocol == Protocol::Tcp && frontend.port == FTP;
        if !is_ftp || !self.context.machine.has(&frontend.address) {
            return self.options.balancing.clone();
        }
        let balancing = self.options.without_timeout(self.context).clone();
        if balancing.affinity_secs != self.options.balancing.affinity_secs {
            let message = format!(
                "is by the hash of the client's address at {frontend}: there, affinity with a timeout would take \
                 the connections to other ports of this node's address"
            );
            self.problem("spec.sessionAffinity", "ClientIP", message);
        }
        balancing
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

    /// Returns how long removed endpoints of `port` may keep their connections.
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
        let is_at = |frontend: &Frontend| frontend.address == address;
        let mut frontends = self.requirements.frontends.iter();
        let is_foreign = self.context.capabilities.foreign.iter().any(is_at);
        if is_foreign && !frontends.any(|(frontend, _)| is_at(frontend)) {
            return;
        }
        let is_known = self.requirements.addresses.contains(&address);
        if !is_known && !self.context.machine.has(&address) {
            self.requirements.addresses.push(address);
        }
    }
}

/// Returns whether any endpoint has a weight above 0.
fn accept_connections(endpoints: &[SelectedEndpoint]) -> bool {
    endpoints.iter().any(|endpoint| endpoint.weight > 0)
}
