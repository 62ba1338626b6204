//! The step about endpoints: which serve, and why the others do not.

use std::collections::BTreeSet;
use std::sync::Arc;

use nftables::End;

use super::finding::{Kind, NO_ENDPOINT, NO_LOCAL_ENDPOINT};
use super::passage::Arrival;
use super::step::{Outcome, Seen, Step};
use super::{Asked, Sight};
use crate::cluster::model::{Family, Service, ServicePort, TrafficPolicy};
use crate::plan::{Availability, FrontendPlan, LeftOut, Scope, Surveyed, survey};

impl Sight<'_> {
    /// Explains which endpoints serve, and why the others do not. Returns the kind of the finding, if none serves.
    pub(super) fn endpoints(
        &self,
        plan: &FrontendPlan,
        (policy, family): (TrafficPolicy, Family),
        asked: &Asked,
    ) -> (Step, Option<(&'static Kind, Outcome)>) {
        let snapshot = self.planned.snapshot;
        let service = snapshot.service(&plan.owner.service);
        let is_port = |port: &&ServicePort| {
            port.name == plan.owner.port && port.protocol == asked.frontend.protocol
        };
        let port = service.and_then(|service| service.ports.iter().find(is_port));
        let config = self.planned.config();
        let all = match (service, port) {
            (Some(service), Some(port)) => {
                let standings = &self.planned.machine.standings;
                let view = (snapshot, config, standings);
                survey(view, (service, port), family, policy)
            }
            _ => Vec::new(),
        };
        let accepting = all
            .iter()
            .filter(|it| it.result.is_ok_and(|weight| weight > 0));
        let accepting = accepting.count();
        let policy_field = match plan.profile.access.scope {
            Scope::Internal => "spec.internalTrafficPolicy",
            Scope::External | Scope::NodePort => "spec.externalTrafficPolicy",
        };
        let details = all
            .iter()
            .map(|it| self.endpoint(it, service, policy_field));
        let details = details.collect();
        let name = &plan.owner.service;
        let is_inside = plan.inside.is_some() && policy == TrafficPolicy::Cluster;
        let because = match (policy, is_inside) {
            (TrafficPolicy::Local, _) => format!("{policy_field} of Service {name} is Local"),
            (TrafficPolicy::Cluster, true) => {
                format!(
                    "{policy_field} is Local, which does not restrict clients inside the cluster"
                )
            }
            (TrafficPolicy::Cluster, false) => {
                format!("{policy_field} of Service {name} is Cluster")
            }
        };
        let node = match &*config.node_name {
            "" => "this node",
            name => name,
        };
        let (what, kind) = match (accepting, plan.profile.access.endpoints) {
            (0, Availability::RemoteOnly) if policy == TrafficPolicy::Local => (
                format!(
                    "policy Local, and no endpoint of Service {} is on {node}",
                    plan.owner
                ),
                Some(&NO_LOCAL_ENDPOINT),
            ),
            (0, _) => {
                let reasons: BTreeSet<&str> = all.iter().map(|it| short(it.result)).collect();
                let reasons: Vec<&str> = reasons.into_iter().collect();
                let of_all = match all.len() {
                    0 => "no EndpointSlice lists one for this port and family".to_owned(),
                    1 => format!("the only one {}", reasons.join(", ")),
                    count => format!("of {count}: {}", reasons.join(", ")),
                };
                (
                    format!(
                        "Service {} has no endpoint that accepts connections: {of_all}",
                        plan.owner
                    ),
                    Some(&NO_ENDPOINT),
                )
            }
            (count, _) => (
                format!("{count} of {} endpoints accept connections", all.len()),
                None,
            ),
        };
        let outcome = match &asked.passed.arrival {
            Arrival::Ended(End::Dropped(_)) => Outcome::Dropped,
            _ => Outcome::Refused,
        };
        let step = Step::new(what, because, Seen::Plan).with_details(details);
        (step, kind.map(|kind| (kind, outcome)))
    }

    /// Returns the line of an endpoint.
    fn endpoint(&self, it: &Surveyed, service: Option<&Service>, policy_field: &str) -> String {
        let location = &it.endpoint.location;
        let node = match &location.node {
            Some(node) => format!("on {node}"),
            None => "on no known node".to_owned(),
        };
        let keys = "annotation ipvs-proxier.io/topology-keys";
        let hinted = |names: &[Arc<str>]| {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            names.join(", ")
        };
        let reason = match it.result {
            Ok(0) if it.is_silenced => {
                "it answered none of the last connections of this node (annotation \
                 ipvs-proxier.io/passive-health)"
                    .to_owned()
            }
            Ok(0) => {
                "weight 0, so no new connections (annotation ipvs-proxier.io/weights, or --weights)"
                    .to_owned()
            }
            Ok(weight) => {
                let why = match it.is_new {
                    true => ": new, so an eighth of it for now (slow start)",
                    false => "",
                };
                return format!("{} {node}, weight {weight}{why}", it.address);
            }
            Err(LeftOut::OtherNode) => format!("{policy_field} is Local"),
            Err(LeftOut::NotReady) => "conditions.ready is false".to_owned(),
            Err(LeftOut::Terminating) => {
                "conditions.terminating is true, and others are ready".to_owned()
            }
            Err(LeftOut::Gone) => {
                "conditions.terminating is true, conditions.serving false".to_owned()
            }
            Err(LeftOut::NodeHint) => {
                format!("hints.forNodes is {}", hinted(&location.hints.nodes))
            }
            Err(LeftOut::ZoneHint) => {
                let cause = service.map_or("", |_| "; see spec.trafficDistribution");
                format!("hints.forZones is {}{cause}", hinted(&location.hints.zones))
            }
            Err(LeftOut::Key(key)) => format!("{keys}: others match {}", key.as_str()),
            Err(LeftOut::NoKey) => format!("{keys}: no key matches an endpoint"),
        };
        format!(
            "{} {node}, left out: {reason} (EndpointSlice {})",
            it.address, it.slice
        )
    }
}

fn short(result: Result<u16, LeftOut>) -> &'static str {
    match result {
        Ok(_) => "has weight 0",
        Err(LeftOut::OtherNode) => "is on another node",
        Err(LeftOut::NotReady) => "is not ready",
        Err(LeftOut::Terminating | LeftOut::Gone) => "is terminating",
        Err(LeftOut::NodeHint | LeftOut::ZoneHint) => "is hinted elsewhere",
        Err(LeftOut::Key(_) | LeftOut::NoKey) => "matches no topology key",
    }
}
