//! The ports of a Service.

use std::fmt::Arguments;

use super::PortObject;
use crate::cluster::api::parser::Parser;
use crate::cluster::api::scalar::Scalar;
use crate::cluster::api::seen::SeenValues;
use crate::cluster::model;

/// Parses the ports, in the object's order; of two that conflict the first is kept.
pub(super) fn ports(wire: &[PortObject<'_>], parser: &mut Parser<'_>) -> Vec<model::ServicePort> {
    let mut ports = Vec::with_capacity(wire.len());
    let mut numbers = SeenValues::new();
    let mut names = SeenValues::new();
    let mut node_ports = SeenValues::new();
    for (index, port) in wire.iter().enumerate() {
        let at = format_args!("spec.ports[{index}]");
        let Some(mut port) = read(port, at, parser) else {
            continue;
        };
        let protocol = port.protocol;
        if numbers.contains(&(protocol, port.port)) {
            let message =
                format!("is the {protocol} port of an earlier entry too; the port is skipped");
            parser.problem(format_args!("{at}.port"), port.port, message);
            continue;
        }
        if names.contains(&port.name) {
            let message = match &*port.name {
                "" => "is missing here and in an earlier port; the port is skipped",
                _ => "is the name of an earlier port too; the port is skipped",
            };
            parser.problem(format_args!("{at}.name"), &port.name, message);
            continue;
        }
        // Inserted after both checks, so that a skipped port does not conflict with a later one.
        numbers.insert((protocol, port.port));
        names.insert(port.name.clone());
        if let Some(node_port) = port.node_port
            && !node_ports.insert((protocol, node_port))
        {
            let message = "is the node port of an earlier port too; the port has no node port";
            parser.problem(format_args!("{at}.nodePort"), node_port, message);
            port.node_port = None;
        }
        ports.push(port);
    }
    ports
}

fn read(
    wire: &PortObject<'_>,
    at: Arguments<'_>,
    parser: &mut Parser<'_>,
) -> Option<model::ServicePort> {
    let instead = "the port is skipped";
    let name = parser.port_name(format_args!("{at}.name"), &wire.name, instead)?;
    let protocol = parser.protocol(format_args!("{at}.protocol"), &wire.protocol, instead)?;
    let port = parser.port(format_args!("{at}.port"), &wire.port, instead)?;
    let node_port = match &wire.node_port {
        // An unset node port is absent in the API server's JSON and 0 in its Go types.
        Scalar::Absent | Scalar::Integer(0) => None,
        given => {
            let instead = "the port has no node port";
            parser.port(format_args!("{at}.nodePort"), given, instead)
        }
    };
    Some(model::ServicePort {
        name: parser.intern(name),
        protocol,
        port,
        node_port,
    })
}
