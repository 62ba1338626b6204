//! The output of `status` about the dataplane nftables.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::dataplane::nftables::Served;

/// A frontend as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonFrontend {
    protocol: String,
    address: IpAddr,
    port: u16,
    endpoints: Vec<JsonEndpoint>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonEndpoint {
    endpoint: SocketAddr,
    slots: usize,
    outside_slots: usize,
    connections: usize,
}

/// Returns the frontends as JSON, in order.
pub(crate) fn json_maps(served: &Served) -> Vec<JsonFrontend> {
    let frontends = served.iter().map(|(frontend, endpoints)| JsonFrontend {
        protocol: frontend.protocol.to_string(),
        address: frontend.address,
        port: frontend.port,
        endpoints: endpoints
            .iter()
            .map(|(endpoint, it)| JsonEndpoint {
                endpoint: *endpoint,
                slots: it.slots,
                outside_slots: it.outside_slots,
                connections: it.connections,
            })
            .collect(),
    });
    frontends.collect()
}

/// Returns the frontends as text: the slots of each endpoint, which are its share of new connections, and its connections.
/// An endpoint without slots left the frontend and keeps connections.
pub(crate) fn maps(served: &Served) -> String {
    let mut text = format!(
        "{:<52} {:>7} {:>7} {:>11}\n",
        "Frontend of nftables, endpoint", "slots", "outside", "connections"
    );
    for (frontend, endpoints) in served {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{frontend}");
        for (endpoint, it) in endpoints {
            let _ = writeln!(
                text,
                "  {:<50} {:>7} {:>7} {:>11}",
                endpoint.to_string(),
                it.slots,
                it.outside_slots,
                it.connections
            );
        }
    }
    text + "\n"
}
