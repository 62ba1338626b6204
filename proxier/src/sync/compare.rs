//! Deciding what has to change.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::{Input, Proxier};
use crate::dataplane::Dataplane;
use crate::diff::{Terms, diff, diff_address, diff_server, sort};
use crate::model::ObjectName;
use crate::observed::Observed;
use crate::op::Op;
use crate::owned::Territory;
use crate::plan::{Changed, Desired};
use crate::store::Snapshot;

impl<D: Dataplane> Proxier<D> {
    /// The differences between the plan and what is known, as far as `pending` names them.
    pub(super) fn diff_of(&self, pending: &Changed) -> Vec<Op> {
        self.compare(|desired, known, terms| {
            let mut ops = Vec::new();
            for &key in &pending.virtual_servers {
                diff_server(key, desired, known, terms, &mut ops);
            }
            for &address in &pending.addresses {
                diff_address(address, desired, known, &mut ops);
            }
            ops
        })
    }

    /// Every difference between the plan and what was read.
    pub(super) fn whole_diff(&self) -> Vec<Op> {
        self.compare(diff)
    }

    /// What `diff` finds between the plan and what is known, in the order to apply it in.
    fn compare(&self, diff: impl FnOnce(&Desired, &Observed, &Terms<'_>) -> Vec<Op>) -> Vec<Op> {
        let territory = self.territory();
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, &self.state.owned);
        let terms = Terms {
            is_ours: &is_ours,
            drains: &self.state.drains,
        };
        let mut ops = diff(self.planner.desired(), &self.known, &terms);
        self.order(&mut ops);
        ops
    }

    fn order(&self, ops: &mut Vec<Op>) {
        let desired = self.planner.desired();
        if self.input == Input::Partial {
            ops.retain(|op| !takes_away(op, desired));
        }
        if ops.len() > 1 {
            sort(ops, &first_addresses(&self.snapshot));
        }
    }

    pub(super) fn territory(&self) -> Territory {
        Territory {
            ours: self.snapshot.service_ranges().collect(),
            excluded: self.excluded.clone(),
        }
    }
}

/// The addresses that are served before all others: where everybody on this node, perhaps this
/// process too, reaches the API server.
pub(super) fn first_addresses(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let api_server = ObjectName::new("default", "kubernetes");
    let service = snapshot.service(&api_server).into_iter();
    service
        .flat_map(|service| service.cluster_ips.iter().copied())
        .collect()
}

/// Whether the Op removes a frontend, or its last destinations.
fn takes_away(op: &Op, desired: &Desired) -> bool {
    match op {
        Op::DeleteService(_) | Op::DeleteAddress(_) => true,
        Op::DeleteDestination(key, _) => is_empty(key, desired),
        Op::SetDestination(key, destination) => destination.weight == 0 && is_empty(key, desired),
        _ => false,
    }
}

fn is_empty(key: &ipvs::ServiceKey, desired: &Desired) -> bool {
    let wanted = desired.virtual_servers.get(key);
    wanted.is_none_or(|server| server.destinations.is_empty())
}
