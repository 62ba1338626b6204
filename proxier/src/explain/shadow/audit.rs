//! Finds the parts of the present table that break the documentation of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use ipvs_netlink as ipvs;

use super::change::Listed;
use super::{
    Affected, Change, ChangeCause, Compared, Difference, DocumentedRule, has_foreign_carrier, rule,
};
use crate::cluster::model::{ObjectName, Protocol, TrafficPolicy};
use crate::dataplane::ipvs::destinations::key_of;
use crate::plan::{FrontendKind, SelectedEndpoint};

/// A part of the present table that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) subject: Affected,
    /// The frontends that break the rule in this way.
    pub(crate) frontends: Vec<ipvs::ServiceKey>,
    /// The present state, as a clause: `has weight 0 for destination 10.0.0.1:80`.
    pub(crate) found: String,
    pub(crate) rule: &'static DocumentedRule,
}

/// Returns the findings in `differences`, and those of kube-proxy's packet rules.
pub(super) fn findings(differences: &[Difference], view: &Compared<'_>) -> Vec<Finding> {
    let mut inside = InsideFrontends::of(view);
    let found = differences.iter();
    let mut found: Vec<Finding> = found
        .filter_map(|difference| match difference.cause {
            // Names the external frontends in place of the firewall mark, which no client uses.
            ChangeCause::InsideClients => inside.finding(difference),
            _ => finding(difference),
        })
        .collect();
    // The device shows that kube-proxy serves here, and so that its packet rules exist.
    if has_foreign_carrier(view.observed) {
        found.extend(rewritten_sources(view));
    }
    sorted(found)
}

/// Returns the findings in the order of subjects and rules.
pub(super) fn sorted(mut found: Vec<Finding>) -> Vec<Finding> {
    found.sort_by(|one, other| {
        let order = |finding: &Finding| (finding.subject.clone(), finding.rule.id);
        order(one).cmp(&order(other))
    });
    found
}

/// Returns the finding of a difference; `None` if the documentation leaves the matter open.
fn finding(difference: &Difference) -> Option<Finding> {
    let rule = rule_of(&difference.cause)?;
    let cause = &difference.cause;
    let found = match &difference.change {
        Change::AddServer(_) => "has no virtual server".to_owned(),
        Change::DeleteServer | Change::RetireServer => "has a virtual server".to_owned(),
        Change::SetServer {
            property, before, ..
        } => format!("has {property} {before}"),
        Change::AddDestinations(all) => {
            format!("lacks {}: {cause}", Listed("destination", all))
        }
        Change::RemoveDestinations(all) => {
            format!("has {}: {cause}", Listed("destination", all))
        }
        Change::SetWeight {
            before: 0,
            destinations,
            ..
        } => format!(
            "has weight 0 for {}: {cause}",
            Listed("destination", destinations)
        ),
        Change::AddAddresses(all) => {
            format!("{} not local", Listed("service address", all))
        }
        // The removal of a drained destination, for example: it gets no new connections and harms no client.
        _ => return None,
    };
    Some(Finding {
        subject: difference.subject.clone(),
        frontends: difference.frontends.clone(),
        found,
        rule,
    })
}

/// Returns the rule that demands a change with this cause; `None` if the documentation leaves the matter open.
pub(super) fn rule_of(cause: &ChangeCause) -> Option<&'static DocumentedRule> {
    Some(match cause {
        ChangeCause::NoLocalEndpoint(kind) | ChangeCause::NotLocal(kind, _) => match kind {
            FrontendKind::ClusterIp => &rule::INTERNAL_LOCAL,
            _ => &rule::EXTERNAL_LOCAL,
        },
        ChangeCause::Contested(_) => &rule::ONE_OWNER,
        ChangeCause::Unlisted | ChangeCause::NotReady | ChangeCause::Terminating => {
            &rule::READY_ONLY
        }
        ChangeCause::Hints => &rule::HINTS,
        ChangeCause::Ready | ChangeCause::LastResort => &rule::READY_ALL,
        ChangeCause::Requested(_) | ChangeCause::AddressMissing => &rule::FRONTENDS,
        ChangeCause::NoService => &rule::NO_SERVICE,
        ChangeCause::Affinity => &rule::AFFINITY,
        // Choices of the operator and of this program.
        _ => return None,
    })
}

/// The external frontends at which clients inside the cluster reach too few endpoints, by inside mark.
struct InsideFrontends(BTreeMap<ipvs::ServiceKey, Vec<ipvs::ServiceKey>>);

impl InsideFrontends {
    /// Collects the external IPs and load-balancer addresses of each firewall mark.
    ///
    /// Skips node ports, because the documentation lets the policy apply to all their clients. Skips
    /// frontends whose observed virtual server has all endpoints, as kube-proxy's has without a local one.
    fn of(view: &Compared<'_>) -> Self {
        let mut inside: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (frontend, plan) in &view.desired().frontends {
            let is_external =
                [FrontendKind::ExternalIp, FrontendKind::LoadBalancer].contains(&plan.profile.kind);
            let Some(mark) = view.wanted.inside(frontend).filter(|_| is_external) else {
                continue;
            };
            let key = ipvs::ServiceKey::from(*frontend);
            let observed = view.observed.virtual_servers.get(&key);
            let (Some(all), Some(observed)) = (&plan.inside, observed) else {
                continue;
            };
            let accepts = |wanted: &SelectedEndpoint| {
                let found = observed.destinations.find(&key_of(wanted));
                found.is_some_and(|(_, found)| found.weight > 0)
            };
            let mut accepting = all.endpoints.iter().filter(|it| it.weight > 0);
            if !accepting.all(accepts) {
                inside.entry(mark).or_default().push(key);
            }
        }
        Self(inside)
    }

    fn finding(&mut self, difference: &Difference) -> Option<Finding> {
        let marks = difference.frontends.iter();
        let frontends: Vec<_> = marks
            .filter_map(|mark| self.0.remove(mark))
            .flatten()
            .collect();
        (!frontends.is_empty()).then(|| Finding {
            subject: difference.subject.clone(),
            frontends,
            found: "has the same destinations for clients inside and outside the cluster"
                .to_owned(),
            rule: &rule::INSIDE_CLIENTS,
        })
    }
}

/// Returns the cluster IPs whose port is a node port of policy Cluster.
///
/// kube-proxy's sets of node ports match by protocol and port at every local address, and its service
/// addresses are local.
fn rewritten_sources(view: &Compared<'_>) -> Vec<Finding> {
    let services = view.snapshot.services();
    let marked: BTreeSet<(Protocol, u16)> = services
        .filter(|service| service.external_policy == TrafficPolicy::Cluster)
        .flat_map(|service| &*service.ports)
        // kube-proxy matches SCTP node ports by address too.
        .filter(|port| port.protocol != Protocol::Sctp)
        .filter_map(|port| Some((port.protocol, port.node_port?)))
        .collect();
    let mut found: BTreeMap<&ObjectName, Vec<ipvs::ServiceKey>> = BTreeMap::new();
    for (frontend, plan) in &view.desired().frontends {
        let is_marked = marked.contains(&(frontend.protocol, frontend.port));
        let key = ipvs::ServiceKey::from(*frontend);
        let is_observed = view.observed.virtual_servers.contains_key(&key);
        if plan.profile.kind == FrontendKind::ClusterIp && is_marked && is_observed {
            found.entry(&plan.owner.service).or_default().push(key);
        }
    }
    let found = found.into_iter();
    found
        .map(|(service, frontends)| Finding {
            subject: Affected::Service(service.clone()),
            frontends,
            found: "is reached through packet rules that masquerade every client".to_owned(),
            rule: &rule::SOURCE_KEPT,
        })
        .collect()
}
