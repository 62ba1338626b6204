//! Objects and responses.

use api_server::{CannedResponse, Key};
use serde_json::{Value, json};

pub(crate) fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "a", "name": name},
        "spec": {
            "clusterIP": "10.96.0.7",
            "clusterIPs": ["10.96.0.7"],
            "ipFamilies": ["IPv4"],
            "ports": [{"port": port, "protocol": "TCP"}],
        },
    })
}

pub(crate) fn slice(name: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "a",
            "name": name,
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"port": 80, "protocol": "TCP", "name": ""}],
        "endpoints": [{"addresses": ["10.1.0.1"], "conditions": {"ready": true}}],
    })
}

pub(crate) fn node(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"topology.kubernetes.io/region": "north"},
        },
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

pub(crate) fn key(kind: &str, name: &str) -> Key {
    Key::new(kind, "a", name).unwrap()
}

pub(crate) fn response(status: u16, body: &str) -> CannedResponse {
    CannedResponse {
        status,
        headers: Vec::new(),
        body: body.into(),
        breaks_connection: false,
    }
}
