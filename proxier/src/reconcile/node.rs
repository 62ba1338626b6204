//! Rounds while this node's Node object is unknown.

use std::collections::BTreeSet;

use crate::cluster::problem::Problem;
use crate::cluster::store::Snapshot;

/// The maximum number of similarly named nodes in a Problem.
const SAMPLES: usize = 3;

/// Returns the Problem that the Node `name` does not exist.
///
/// `None` if it exists, or if no endpoint names any node, because then no decision depends on it.
///
/// # Cost
/// Linear in the endpoints, while the Node does not exist.
pub(super) fn missing(name: &str, snapshot: &Snapshot) -> Option<Problem> {
    if name.is_empty() || snapshot.node().is_some() {
        return None;
    }
    let nodes: BTreeSet<&str> = snapshot.nodes_of_endpoints().collect();
    if nodes.is_empty() {
        return None;
    }
    let message = if nodes.contains(name) {
        "does not exist (yet), though endpoints name it: its zone and addresses are unknown, so \
         topology hints are ignored"
            .to_owned()
    } else {
        let resembles = |node: &&str| first_label(node).eq_ignore_ascii_case(first_label(name));
        let similar: Vec<&str> = nodes
            .iter()
            .copied()
            .filter(resembles)
            .take(SAMPLES)
            .collect();
        let similar = match similar[..] {
            [] => String::new(),
            _ => format!(" (endpoints run on {})", similar.join(", ")),
        };
        format!(
            "does not exist (yet): no endpoint is local, so policy Local rejects all connections, \
             and topology hints are ignored; if the node has another name{similar}, pass it with \
             --hostname-override"
        )
    };
    Some(Problem::new(format_args!("Node {name}"), "", "", message))
}

/// Returns the part of a host name before its domain. A Node may have the short or the full name.
fn first_label(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}
