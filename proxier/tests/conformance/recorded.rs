//! The table that kube-proxy programmed for the conformance cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// Returns the path of a file of the conformance data.
pub(crate) fn conformance(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/conformance")
        .join(file);
    path.to_str().unwrap().to_owned()
}

/// By frontend: the scheduler with its affinity, and the destinations with their weights.
pub(crate) type Table = BTreeMap<String, (String, BTreeSet<String>)>;

/// Returns the table that kube-proxy programmed on node-a.
pub(crate) fn of_kube_proxy() -> Table {
    let text = std::fs::read_to_string(conformance("kube-proxy-1.36.2.json")).unwrap();
    let data: Value = serde_json::from_str(&text).unwrap();
    let row = |(frontend, server): (&String, &Value)| {
        let destinations = server["destinations"].as_array().unwrap();
        let destinations = destinations
            .iter()
            .map(|d| d.as_str().unwrap().to_owned())
            .collect();
        (
            frontend.clone(),
            (
                server["scheduler"].as_str().unwrap().to_owned(),
                destinations,
            ),
        )
    };
    data["virtual_servers"]
        .as_object()
        .unwrap()
        .iter()
        .map(row)
        .collect()
}
