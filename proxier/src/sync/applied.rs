//! The result of a round.

use std::collections::BTreeSet;

use crate::conntrack::Swept;
use crate::dataplane::{Failure, Outcome};
use crate::op::{Op, Ops};
use crate::plan::Changed;

/// The changes of a round and their failures.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// The result of writing packet rules; `None` if no write was due.
    pub rules: Option<Result<(), Failure>>,
    /// The result of sweeping stale flows; `None` if no flow could be stale.
    pub flows: Option<Result<Swept, Failure>>,
    /// The Ops, in order.
    pub ops: Ops,
    /// The result of each Op, in order.
    pub outcomes: Vec<Outcome>,
    /// The failure of writing the ledger.
    ///
    /// If the process ended before a later write succeeds, the next process would treat new virtual
    /// servers outside the service ranges as foreign.
    pub unrecorded: Option<Failure>,
    /// Whether the round tried every Op that failed before. An Op that did not fail again works now.
    pub has_tried_all: bool,
    /// The virtual servers that are not created as long as the packet rules cannot be written.
    pub held_back: BTreeSet<ipvs_netlink::ServiceKey>,
    /// The drift that this round repairs.
    pub drifted: Changed,
    /// The schedulers that the kernel lacked before and has now. Services that request them use them again.
    pub found_schedulers: Vec<ipvs_netlink::SchedulerName>,
}

impl Applied {
    /// Returns every failure of the round.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let rules = self.rules.iter().filter_map(|result| result.as_ref().err());
        let ops = self.outcomes.iter();
        let ops = ops.filter_map(|outcome| outcome.as_ref().err());
        let ops = ops.map(|failure| &**failure);
        let flows = self.flows.iter().filter_map(|result| result.as_ref().err());
        rules.chain(ops).chain(flows).chain(&self.unrecorded)
    }

    /// Returns whether `op` repairs drift.
    pub fn is_repair(&self, op: &Op) -> bool {
        match op.service_key() {
            Some(key) => self.drifted.virtual_servers.contains(&key),
            None => op.address().map_or(self.drifted.carrier, |address| {
                self.drifted.addresses.contains(&address)
            }),
        }
    }
}
