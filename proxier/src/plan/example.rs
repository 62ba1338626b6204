//! Plans for tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Access, Availability, Balancing, FrontendKind, FrontendPlan, Profile, RelayOptions, Scope,
    SelectedEndpoint,
};
use crate::cluster::model::{ObjectName, SchedulerFlags, ServicePortName, TrafficPolicy};

/// Returns the plan of a cluster IP of the Service default/web with those of these endpoints that are addresses with ports.
pub fn cluster_ip(endpoints: &[&str]) -> FrontendPlan {
    let endpoint = |endpoint: SocketAddr| SelectedEndpoint {
        address: endpoint.ip(),
        port: endpoint.port(),
        weight: 1,
        most_connections: 0,
    };
    let sockets = endpoints.iter().filter_map(|text| text.parse().ok());
    FrontendPlan {
        profile: Arc::new(Profile {
            kind: FrontendKind::ClusterIp,
            access: Access {
                scope: Scope::Internal,
                policy: TrafficPolicy::Cluster,
                endpoints: Availability::Usable,
                source_ranges: None,
            },
            balancing: Balancing {
                scheduler: "rr".into(),
                flags: SchedulerFlags::default(),
                affinity_secs: None,
            },
            drain: Duration::ZERO,
            relay: RelayOptions::default(),
            siblings: 1,
        }),
        endpoints: sockets.map(endpoint).collect(),
        inside: None,
        owner: ServicePortName {
            service: ObjectName::new("default", "web"),
            port: "".into(),
        },
    }
}
