//! Allocates node ports for Services that need one and specify none.
//!
//! As for cluster IPs, a port is computed from the Service's name and port, see [`Pool`].

use std::collections::{BTreeMap, BTreeSet};

use super::inventory::Located;
use super::pool::Pool;
use crate::api::{self, Scalar, ServiceSpec};
use crate::model::ObjectName;
use crate::problem::Problem;

/// The first port of the API server's default range.
const FIRST: u16 = 30_000;
/// The number of ports of the range, which ends at 32767.
const COUNT: u16 = 2768;
/// How many of the lowest ports are allocated last (KEP-3668: a thirty-second of the range).
const LOW: u16 = COUNT / 32;

/// Allocates the missing node ports of Services of type `NodePort` and `LoadBalancer`, and the
/// missing health-check ports of load balancers.
pub(super) fn assign(services: &mut BTreeMap<ObjectName, Located<api::Service>>) {
    let mut pool = Pool::new(COUNT.into(), LOW.into());
    let mut requests = Vec::new();
    for (name, located) in services.iter_mut() {
        let spec = &mut located.object.spec;
        if has_node_ports(spec) {
            share_ports(spec);
        }
        // All specified ports are reserved before one is allocated.
        let given = spec.ports.iter().map(|port| &port.node_port);
        for port in given.chain([&spec.health_check_node_port]) {
            if let Some(number) = written(port).and_then(|port| port.checked_sub(FIRST)) {
                pool.reserve(number.into());
            }
        }
        if located.object.has_addresses() {
            requests.extend(wants(name, &located.object.spec));
        }
    }
    let names: Vec<String> = requests
        .iter()
        .map(|request| request.name.clone())
        .collect();
    for (request, number) in requests.into_iter().zip(pool.assign(&names)) {
        let Some(located) = services.get_mut(&request.service) else {
            continue;
        };
        let offset = number.and_then(|number| u16::try_from(number).ok());
        request.finish(located, offset.map(|offset| FIRST + offset));
    }
}

/// A port to allocate.
struct Request {
    service: ObjectName,
    /// The name from which the port is computed.
    name: String,
    goal: Goal,
}

enum Goal {
    /// For the Service's ports of that number. A port number with several protocols has the same
    /// node port for all of them, as with the API server.
    NodePort(u16),
    HealthCheck,
}

impl Request {
    fn finish(self, located: &mut Located<api::Service>, port: Option<u16>) {
        let spec = &mut located.object.spec;
        let Some(node_port) = port else {
            let field = match self.goal {
                Goal::NodePort(_) => "spec.ports",
                Goal::HealthCheck => "spec.healthCheckNodePort",
            };
            let message = "every node port is in use; none is allocated";
            let object = format!("Service {}", self.service);
            located
                .problems
                .push(Problem::new(object, field, "", message));
            return;
        };
        match self.goal {
            Goal::HealthCheck => spec.health_check_node_port = node_port.into(),
            Goal::NodePort(port) => {
                for entry in spec
                    .ports
                    .iter_mut()
                    .filter(|entry| written(&entry.port) == Some(port))
                {
                    if is_open(&entry.node_port) {
                        entry.node_port = node_port.into();
                    }
                }
            }
        }
    }
}

fn wants(name: &ObjectName, spec: &ServiceSpec) -> Vec<Request> {
    let mut requests = Vec::new();
    if has_node_ports(spec) {
        let open = spec.ports.iter().filter(|entry| is_open(&entry.node_port));
        let ports: BTreeSet<u16> = open.filter_map(|entry| written(&entry.port)).collect();
        requests.extend(ports.into_iter().map(|port| Request {
            service: name.clone(),
            name: format!("{name}:{port}"),
            goal: Goal::NodePort(port),
        }));
    }
    let is_balanced = spec.r#type.as_str() == Some("LoadBalancer");
    let is_local = spec.external_traffic_policy.as_str() == Some("Local");
    if is_balanced && is_local && spec.health_check_node_port == Scalar::Absent {
        requests.push(Request {
            service: name.clone(),
            name: format!("{name} health check"),
            goal: Goal::HealthCheck,
        });
    }
    requests
}

/// Returns whether ports without a node port get one.
fn has_node_ports(spec: &ServiceSpec) -> bool {
    match spec.r#type.as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec.allocate_load_balancer_node_ports != Scalar::Boolean(false),
        _ => false,
    }
}

/// Copies the node port of a port to ports of the same number that specify none.
fn share_ports(spec: &mut ServiceSpec) {
    let mut given = BTreeMap::new();
    for entry in &spec.ports {
        if let (Some(port), Some(node_port)) = (written(&entry.port), written(&entry.node_port)) {
            given.entry(port).or_insert(node_port);
        }
    }
    for entry in spec
        .ports
        .iter_mut()
        .filter(|entry| is_open(&entry.node_port))
    {
        if let Some(&node_port) = written(&entry.port).and_then(|port| given.get(&port)) {
            entry.node_port = node_port.into();
        }
    }
}

fn is_open(port: &Scalar) -> bool {
    // In Go types an absent port is 0.
    matches!(port, Scalar::Absent | Scalar::Integer(0))
}

fn written(port: &Scalar) -> Option<u16> {
    match port {
        Scalar::Integer(number) => u16::try_from(*number).ok().filter(|&port| port != 0),
        _ => None,
    }
}
