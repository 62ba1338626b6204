//! The Ops of a round, from the plan and the observed state.

use std::time::Duration;

use ipvs_netlink as ipvs;

use super::{Ipvs, Kernel, KernelParts, Wanted};
use crate::dataplane::ipvs::diff::{
    DeletionRules, diff, diff_address, diff_carrier, diff_server, diff_stale_server, sort,
};
use crate::dataplane::ipvs::ledger::Ledger;
use crate::dataplane::ipvs::op::Ops;
use crate::dataplane::{Extent, Planned};

impl<K: Kernel> Ipvs<K> {
    /// Returns the Ops that lead from the observed state to the plan, in the order to apply them.
    pub(super) fn compare(&mut self, planned: Planned<'_>, extent: Extent, now: Duration) -> Ops {
        // Taken for `All` too, because its comparison includes them.
        let pending = std::mem::take(&mut self.state.pending);
        let mut ops = match extent {
            Extent::All => self.compare_all(planned),
            Extent::Pending => self.compare_pending(planned, &pending, now),
        };
        if ops.len() > 1 {
            sort(&mut ops, &planned.first_addresses());
        }
        ops
    }

    /// Compares everything. The resync has begun drains already.
    fn compare_all(&self, planned: Planned<'_>) -> Ops {
        let territory = self.territory(planned);
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, self.ledger.owned());
        let rules = deletion_rules(&is_ours, &self.ledger);
        let observed = &self.state.observed;
        diff(
            Wanted::new(planned.desired(), &self.marks),
            needs_carrier(planned),
            observed,
            &rules,
        )
    }

    /// Compares what is in `pending`, and begins its drains.
    fn compare_pending(
        &mut self,
        planned: Planned<'_>,
        pending: &KernelParts,
        now: Duration,
    ) -> Ops {
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let observed = &self.state.observed;
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
        self.compare_stale(planned, &stale, &mut ops);
        let (desired, observed) = (planned.desired(), &self.state.observed);
        for &address in &pending.addresses {
            diff_address(address, desired, observed, &mut ops);
        }
        diff_carrier(needs_carrier(planned), desired, observed, &mut ops);
        ops
    }

    /// Compares virtual servers that are not desired.
    fn compare_stale(&self, planned: Planned<'_>, stale: &[ipvs::ServiceKey], ops: &mut Ops) {
        if stale.is_empty() {
            return;
        }
        let territory = self.territory(planned);
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, self.ledger.owned());
        let rules = deletion_rules(&is_ours, &self.ledger);
        for key in stale {
            let found = self.state.observed.virtual_servers.get(key);
            diff_stale_server(*key, found, &rules, ops);
        }
    }
}

/// Returns whether service addresses need the device `kube-ipvs0`.
///
/// Even without a service address, because Felix restarts whenever the device appears or disappears.
fn needs_carrier(planned: Planned<'_>) -> bool {
    planned.config().service_addresses.use_carrier()
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
