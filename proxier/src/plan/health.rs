//! What load balancers may ask this node about Services (`spec.healthCheckNodePort`).

use std::collections::BTreeMap;

use super::planner::age;
use crate::model::{Family, ObjectName};
use crate::problem::Problem;
use crate::store::Snapshot;

/// The answer to a load balancer that asks whether this node serves a Service under external traffic
/// policy Local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: ObjectName,
    /// For each family of the Service, how many endpoints on this node are ready and get new
    /// connections; an endpoint counts once, however many ports it has. Endpoints that are
    /// terminating still serve as the last resort, but do not count: the load balancer is to look
    /// for another node.
    pub local_endpoints: BTreeMap<Family, usize>,
}

/// Who claims which port. The API server gives out each once; manifests may not.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthPorts {
    claims: BTreeMap<u16, Vec<HealthCheck>>,
}

impl HealthPorts {
    pub(super) fn claim(&mut self, port: u16, check: HealthCheck) {
        self.claims.entry(port).or_default().push(check);
    }

    pub(super) fn withdraw(&mut self, port: u16, service: &ObjectName) {
        if let Some(claims) = self.claims.get_mut(&port) {
            claims.retain(|check| check.service != *service);
            if claims.is_empty() {
                self.claims.remove(&port);
            }
        }
    }

    /// Whose answer is given at `port`: the oldest Service's.
    pub(super) fn winner(&self, port: u16, snapshot: &Snapshot) -> Option<&HealthCheck> {
        let claims = self.claims.get(&port)?.iter();
        claims.min_by_key(|check| age(&check.service, snapshot))
    }

    /// The Services that did not get their port.
    pub(super) fn problems(&self, snapshot: &Snapshot) -> Vec<Problem> {
        let mut problems = Vec::new();
        let contested = self.claims.iter().filter(|(_, claims)| claims.len() > 1);
        for (&port, claims) in contested {
            let Some(HealthCheck {
                service: winner, ..
            }) = self.winner(port, snapshot)
            else {
                continue;
            };
            let services = claims.iter().map(|check| &check.service);
            problems.extend(services.filter(|&service| service != winner).map(|loser| {
                Problem::new(
                    format_args!("Service {loser}"),
                    "spec.healthCheckNodePort",
                    port,
                    format!(
                        "already given to Service {winner}; load balancers have no health check of \
                         the Service"
                    ),
                )
            }));
        }
        problems
    }
}
