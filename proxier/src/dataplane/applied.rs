//! The result of a round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::dataplane::ipvs::KernelParts;
use crate::dataplane::ipvs::conntrack::Swept;
use crate::dataplane::ipvs::op::{Op, Ops};
use crate::dataplane::{Failure, Outcome};

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
    pub outcomes: Outcomes,
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
    pub drifted: KernelParts,
    /// The schedulers that the kernel lacked before and has now. Services that request them use them again.
    pub found_schedulers: Vec<Arc<str>>,
}

impl Applied {
    /// Returns every failure of the round.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let rules = self.rules.iter().filter_map(|result| result.as_ref().err());
        let ops = self.outcomes.failures();
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

/// The outcome of each Op of a round, in order. Only failures take memory: a first programming has 100,000 Ops.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    count: usize,
    /// By the place of the Op.
    failures: BTreeMap<usize, Box<Failure>>,
}

impl Outcomes {
    /// Returns the number of Ops.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there was no Op.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the outcomes.
    pub fn iter(&self) -> impl Iterator<Item = Result<(), &Failure>> {
        let mut failures = self.failures.iter().peekable();
        (0..self.count).map(move |place| {
            let failure = failures.next_if(|(failed, _)| **failed == place);
            failure.map_or(Ok(()), |(_, failure)| Err(&**failure))
        })
    }

    /// Returns the failures, in the order of the Ops.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.failures.values().map(|failure| &**failure)
    }
}

impl Extend<Outcome> for Outcomes {
    fn extend<I: IntoIterator<Item = Outcome>>(&mut self, outcomes: I) {
        for outcome in outcomes {
            if let Err(failure) = outcome {
                self.failures.insert(self.count, failure);
            }
            self.count += 1;
        }
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(all: I) -> Self {
        let mut outcomes = Self::default();
        outcomes.extend(all);
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_in_the_order_of_the_ops() {
        let failure = |message: &str| Failure {
            errno: None,
            message: message.to_owned(),
        };
        let mut outcomes: Outcomes = [Err(failure("a").into()), Ok(())].into_iter().collect();
        outcomes.extend([Ok(()), Err(failure("b").into()), Ok(())]);
        let (a, b) = (failure("a"), failure("b"));
        let expected = [Err(&a), Ok(()), Ok(()), Err(&b), Ok(())];
        assert_eq!(outcomes.iter().collect::<Vec<_>>(), expected);
        assert_eq!(outcomes.failures().collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(outcomes.len(), 5);
    }
}
