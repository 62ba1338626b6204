//! Health checks of Services for load balancers (`spec.healthCheckNodePort`).

use std::collections::BTreeMap;

use super::precedence::age;
use crate::cluster::model::{Family, ObjectName};
use crate::cluster::problem::Problem;
use crate::cluster::store::Snapshot;

/// The health of a Service with external traffic policy Local on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The Service.
    pub service: ObjectName,
    /// The number of ready local endpoints with a weight above 0, by family of the Service.
    ///
    /// An endpoint with several ports counts once. Terminating endpoints do not count, although
    /// they may still serve: the load balancer should choose another node before they exit.
    pub local_endpoints: BTreeMap<Family, usize>,
}

/// The Services that claim each health-check port.
///
/// The API server allocates each port once, but manifests may contain the same port twice.
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

    /// Returns whether several Services claim `port`.
    pub(super) fn is_contested(&self, port: u16) -> bool {
        self.claims
            .get(&port)
            .is_some_and(|claims| claims.len() > 1)
    }

    /// Returns the claimed ports.
    pub(super) fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.claims.keys().copied()
    }

    /// Returns the health check to serve at `port`: the oldest Service's.
    pub(super) fn winner(&self, port: u16, snapshot: &Snapshot) -> Option<&HealthCheck> {
        let claims = self.claims.get(&port)?.iter();
        claims.min_by_key(|check| age(&check.service, snapshot))
    }

    /// Returns a problem for each Service that lost its port to an older one.
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
                        "is also the port of Service {winner}, which is older and gets it; this Service \
                         has no health check"
                    ),
                )
            }));
        }
        problems
    }
}
