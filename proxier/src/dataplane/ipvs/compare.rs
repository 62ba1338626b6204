//! The Ops of a round, from the plan and the observed state.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::Dataplane;
use crate::dataplane::ipvs::{KernelParts, Wanted};
use crate::diff::{
    DeletionRules, diff, diff_address, diff_carrier, diff_server, diff_stale_server, sort,
};
use crate::ledger::Ledger;
use crate::model::ObjectName;
use crate::op::Ops;
use crate::store::Snapshot;
use crate::sync::{Extent, Proxier};

impl<D: Dataplane> Proxier<D> {
    /// Returns the Ops that lead from the observed state to the plan, in the order to apply them.
    pub(crate) fn compare(&mut self, extent: Extent, now: Duration) -> Ops {
        // Taken for `All` too, because its comparison includes them.
        let pending = std::mem::take(&mut self.kernel.pending);
        let mut ops = match extent {
            Extent::All => self.compare_all(),
            Extent::Pending => self.compare_pending(&pending, now),
        };
        if ops.len() > 1 {
            sort(&mut ops, &first_addresses(&self.input.snapshot));
        }
        ops
    }

    /// Compares everything. The resync has begun drains and retirements already, because the rules that it
    /// checks depend on them.
    fn compare_all(&self) -> Ops {
        let territory = self.input.territory(&self.machine, &self.excluded);
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, self.ledger.owned());
        let rules = deletion_rules(&is_ours, &self.ledger);
        let observed = &self.kernel.observed;
        diff(self.wanted(), self.needs_carrier(), observed, &rules)
    }

    /// Compares what is in `pending`, and begins its drains and retirements.
    fn compare_pending(&mut self, pending: &KernelParts, now: Duration) -> Ops {
        let wanted = Wanted::new(self.planner.desired(), &self.marks);
        let observed = &self.kernel.observed;
        let (mut ops, mut stale) = (Ops::default(), Vec::new());
        for key in &pending.virtual_servers {
            let Some(server) = wanted.get(key) else {
                stale.push(*key);
                continue;
            };
            let found = observed.virtual_servers.get(key);
            if let Some(found) = found {
                // It may have passed from another Service, or another program created it. The ledger must
                // name its present Service, whose deletion deletes the virtual server at once.
                self.ledger.own(*key, server.owner());
                self.ledger.recognise_drains(*key, &server, found, now);
            }
            diff_server(*key, &server, found, self.ledger.drains(), &mut ops);
        }
        self.compare_stale(&stale, &mut ops, now);
        let kept = self.keep_addresses();
        let (desired, observed) = (self.planner.desired(), &self.kernel.observed);
        for &address in pending.addresses.union(&kept) {
            diff_address(address, desired, observed, &mut ops);
        }
        diff_carrier(self.needs_carrier(), desired, observed, &mut ops);
        ops
    }

    /// Compares virtual servers that are not desired, and begins their retirements.
    fn compare_stale(&mut self, stale: &[ipvs::ServiceKey], ops: &mut Ops, now: Duration) {
        if stale.is_empty() {
            return;
        }
        self.retire(stale, now);
        let territory = self.input.territory(&self.machine, &self.excluded);
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, self.ledger.owned());
        let rules = deletion_rules(&is_ours, &self.ledger);
        for key in stale {
            let found = self.kernel.observed.virtual_servers.get(key);
            diff_stale_server(*key, found, &rules, ops);
        }
    }
}

fn deletion_rules<'a>(
    is_ours: &'a dyn Fn(&ipvs::ServiceKey) -> bool,
    ledger: &'a Ledger,
) -> DeletionRules<'a> {
    DeletionRules {
        is_ours,
        drains: ledger.drains(),
        retired: ledger.retired(),
    }
}

/// Returns the addresses that are programmed before all others.
///
/// These are the cluster IPs of the API server, through which processes of this node, perhaps this one
/// too, reach it.
fn first_addresses(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let api_server = ObjectName::new("default", "kubernetes");
    let service = snapshot.service(&api_server).into_iter();
    service.flat_map(|service| service.cluster_ips).collect()
}
