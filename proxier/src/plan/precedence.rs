//! The order in which Services get a contested frontend.

use std::time::SystemTime;

use super::{FrontendKind, FrontendPlan};
use crate::cluster::model::ObjectName;
use crate::cluster::problem::Problem;
use crate::cluster::store::Snapshot;
use crate::plan::frontend::Frontend;

/// Returns the precedence of a claim to a frontend, the highest first.
///
/// A cluster IP wins over all others. Among these, the older Service wins: a new one with an external IP at the node's
/// address does not take an older one's node port.
pub(super) fn precedence(
    plan: &FrontendPlan,
    snapshot: &Snapshot,
) -> (bool, (bool, Option<SystemTime>, ObjectName)) {
    let is_external = plan.profile.kind != FrontendKind::ClusterIp;
    (is_external, age(&plan.owner.service, snapshot))
}

/// Returns a key that orders Services by age, the oldest first.
///
/// So a new Service never takes a frontend from an older one. Objects without a creation time, as in
/// manifests, come last, ordered by name.
pub(super) fn age(
    name: &ObjectName,
    snapshot: &Snapshot,
) -> (bool, Option<SystemTime>, ObjectName) {
    let service = snapshot.service(name);
    let created = service.and_then(|service| service.created);
    (created.is_none(), created, name.clone())
}

/// Returns the problem of a Service that lost a frontend to another one.
pub(super) fn conflict(frontend: Frontend, loser: &FrontendPlan, winner: &FrontendPlan) -> Problem {
    Problem::new(
        format_args!("Service {}", loser.owner.service),
        loser.profile.kind.field(),
        frontend,
        format!(
            "is a frontend of Service {} already; this Service does not get it",
            winner.owner.service
        ),
    )
}
