//! Why an endpoint gets no new connections.

use crate::cluster::model::{Endpoint, TrafficPolicy};
use crate::plan::SelectedEndpoint;

/// What decides about the endpoints of a frontend, beside their own conditions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    /// The traffic policy for the clients in question.
    pub(super) policy: TrafficPolicy,
    /// The name of this node.
    pub(super) node: &'a str,
    /// Whether the Service has the annotation `topology-keys`.
    pub(super) has_topology_keys: bool,
}

/// Returns why an endpoint gets no new connections; `None` if it gets some. `selected` is the endpoint in the plan.
pub(super) fn reason(
    endpoint: &Endpoint,
    selected: Option<&SelectedEndpoint>,
    choice: Choice<'_>,
) -> Option<&'static str> {
    if let Some(selected) = selected {
        return (selected.weight == 0).then_some("weight 0 (annotation ipvs-proxier.io/weights)");
    }
    Some(match endpoint {
        Endpoint {
            is_ready: false,
            is_terminating: true,
            is_serving: true,
            ..
        } if choice.policy == TrafficPolicy::Cluster || endpoint.is_on(choice.node) => {
            "terminating, and others are ready"
        }
        Endpoint {
            is_ready: false,
            is_terminating: true,
            ..
        } => "terminating",
        Endpoint {
            is_ready: false, ..
        } => "not ready",
        _ if choice.policy == TrafficPolicy::Local && !endpoint.is_on(choice.node) => {
            "on another node (traffic policy Local)"
        }
        _ if choice.has_topology_keys => {
            "others are nearer (annotation ipvs-proxier.io/topology-keys)"
        }
        _ => "its topology hints name other zones or nodes",
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::model::Location;

    /// Returns an endpoint on `node` with the conditions whose first letters are in `conditions`.
    fn endpoint(conditions: &str, node: &str) -> Endpoint {
        Endpoint {
            address: [10, 244, 0, 1].into(),
            is_ready: conditions.contains('r'),
            is_serving: conditions.contains('s'),
            is_terminating: conditions.contains('t'),
            location: Arc::new(Location {
                node: Some(node.into()),
                ..Location::default()
            }),
        }
    }

    #[test]
    fn each_endpoint_without_new_connections_has_a_reason() {
        use TrafficPolicy::{Cluster, Local};
        let here = |policy, has_topology_keys| Choice {
            policy,
            node: "here",
            has_topology_keys,
        };
        for (conditions, node, choice, expected) in [
            ("", "here", here(Cluster, false), "not ready"),
            ("s", "here", here(Cluster, false), "not ready"),
            ("t", "here", here(Cluster, false), "terminating"),
            ("st", "there", here(Local, false), "terminating"),
            (
                "st",
                "there",
                here(Cluster, false),
                "terminating, and others are ready",
            ),
            (
                "rs",
                "there",
                here(Local, false),
                "on another node (traffic policy Local)",
            ),
            (
                "rs",
                "there",
                here(Cluster, true),
                "others are nearer (annotation ipvs-proxier.io/topology-keys)",
            ),
            (
                "rs",
                "there",
                here(Cluster, false),
                "its topology hints name other zones or nodes",
            ),
        ] {
            let found = reason(&endpoint(conditions, node), None, choice);
            assert_eq!(found, Some(expected), "{conditions} {node}");
        }
        let selected = |weight| SelectedEndpoint {
            address: [10, 244, 0, 1].into(),
            port: 80,
            weight,
        };
        let of = |weight| {
            reason(
                &endpoint("rs", "here"),
                Some(&selected(weight)),
                here(Cluster, false),
            )
        };
        assert_eq!(of(0), Some("weight 0 (annotation ipvs-proxier.io/weights)"));
        assert_eq!(of(1), None);
    }
}
