//! Allocates node ports for Services that need one and specify none.
//!
//! As for cluster IPs, a port is computed from the Service's name and port, see [`Pool`].

use std::collections::BTreeMap;

use super::addresses::moved;
use super::inventory::Located;
use super::pool::{Assigned, Numbers, Pool};
use crate::cluster::api::{self, Scalar, ServiceSpec};
use crate::cluster::model::ObjectName;

/// The first port of the API server's default range.
const FIRST: u16 = 30_000;
/// The number of ports of the range, which ends at 32767.
const COUNT: u16 = 2768;
/// How many of the lowest ports are allocated last (KEP-3668: a thirty-second of the range).
const LOW: u16 = COUNT / 32;

/// Allocates the missing node ports of Services of type `NodePort` and `LoadBalancer`, and the
/// missing health-check ports of load balancers.
///
/// `numbers` has those of the load before; see [`Pool::assign`], also for `are_all`.
pub(super) fn assign(
    services: &mut BTreeMap<ObjectName, Located<api::ServiceObject<'static>>>,
    numbers: &mut Numbers,
    are_all: bool,
) {
    let mut pool = Pool::new(COUNT.into(), LOW.into());
    // All specified ports are reserved before one is allocated.
    for located in services.values() {
        let spec = &located.object.spec;
        let given = spec.ports.iter().map(|port| &port.node_port);
        for port in given.chain([&spec.health_check_node_port]) {
            if let Some(number) = written(port).and_then(|port| port.checked_sub(FIRST)) {
                pool.reserve(number.into());
            }
        }
    }
    let mut requests = Vec::new();
    for (name, located) in services.iter_mut() {
        if located.object.has_addresses() {
            requests.extend(requests_of(name, &mut located.object.spec));
        }
    }
    let claims: Vec<String> = requests.iter().map(|it| it.name.clone()).collect();
    let assigned = pool.assign(&claims, numbers, are_all);
    let mut remarks = Vec::new();
    for (request, Assigned { number, lost }) in requests.into_iter().zip(assigned) {
        let port = |number: u64| u16::try_from(number).map(|number| FIRST + number).ok();
        let remark = match (number.and_then(port), lost.and_then(port)) {
            (None, _) => Some("every node port is in use; none is allocated".to_owned()),
            (Some(port), lost) => {
                request.ports.into_iter().for_each(|it| *it = port.into());
                lost.map(|lost| moved(lost, port))
            }
        };
        remarks.extend(remark.map(|remark| (request.service.clone(), request.field, remark)));
    }
    for (name, field, remark) in remarks {
        if let Some(located) = services.get_mut(&name) {
            located.add_problem(&format!("Service {name}"), field, remark);
        }
    }
}

/// A node port to allocate.
struct PortRequest<'a> {
    service: &'a ObjectName,
    /// The name from which the port is computed.
    name: String,
    /// The field that a problem names.
    field: &'static str,
    /// The fields that get the port.
    ports: Vec<&'a mut Scalar<'static>>,
}

/// Returns the missing node ports of a Service.
///
/// A port number with several protocols has the same node port for all of them, as with the API
/// server. If the manifest specifies one of these, it is copied.
fn requests_of<'a>(
    service: &'a ObjectName,
    spec: &'a mut ServiceSpec<'static>,
) -> Vec<PortRequest<'a>> {
    let has_node_ports = has_node_ports(spec);
    let mut given = BTreeMap::new();
    for entry in &spec.ports {
        if let (Some(port), Some(node_port)) = (written(&entry.port), written(&entry.node_port)) {
            given.entry(port).or_insert(node_port);
        }
    }
    let mut missing: BTreeMap<u16, Vec<&mut Scalar<'static>>> = BTreeMap::new();
    let open = spec.ports.iter_mut().filter(|it| is_open(&it.node_port));
    for entry in open.filter(|_| has_node_ports) {
        let Some(port) = written(&entry.port) else {
            continue;
        };
        match given.get(&port) {
            Some(&node_port) => entry.node_port = node_port.into(),
            None => missing.entry(port).or_default().push(&mut entry.node_port),
        }
    }
    let requests = missing.into_iter().map(|(port, ports)| PortRequest {
        service,
        name: format!("{service}:{port}"),
        field: "spec.ports",
        ports,
    });
    let mut requests: Vec<PortRequest<'a>> = requests.collect();
    let is_balanced = spec.r#type.as_str() == Some("LoadBalancer");
    let is_local = spec.external_traffic_policy.as_str() == Some("Local");
    if is_balanced && is_local && spec.health_check_node_port == Scalar::Absent {
        requests.push(PortRequest {
            service,
            name: format!("{service} health check"),
            field: "spec.healthCheckNodePort",
            ports: vec![&mut spec.health_check_node_port],
        });
    }
    requests
}

/// Returns whether ports without a node port get one.
fn has_node_ports(spec: &ServiceSpec<'static>) -> bool {
    match spec.r#type.as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec.allocate_load_balancer_node_ports != Scalar::Boolean(false),
        _ => false,
    }
}

/// Returns whether the manifest specifies no port.
fn is_open(port: &Scalar<'_>) -> bool {
    // An unset port is absent in the API server's JSON and 0 in its Go types.
    matches!(port, Scalar::Absent | Scalar::Integer(0))
}

/// Returns the specified port. Parsing the Service reports an invalid one.
fn written(port: &Scalar<'_>) -> Option<u16> {
    match port {
        Scalar::Integer(number) => u16::try_from(*number).ok().filter(|&port| port != 0),
        _ => None,
    }
}
