//! Flows (connection tracking entries) that Ops made stale.

use std::collections::BTreeMap;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::strays::Strays;
use super::{Kernel, Wanted};
use crate::dataplane::Failure;
use crate::dataplane::conntrack::{Stale, Swept};
use crate::dataplane::ipvs::observed::ObservedServer;
use crate::dataplane::ipvs::op::Op;
use crate::util::timer::Timer;

/// The pause after a failed sweep.
const RETRY: Duration = Duration::from_secs(5);

/// The flows that wait to be swept.
#[derive(Debug)]
pub(super) struct Flows {
    /// The virtual servers with stale flows, each with the last Op that made flows stale.
    ///
    /// A sweep compares all flows of a virtual server with the plan, so one Op suffices. A list would grow
    /// while sweeps fail.
    unswept: BTreeMap<ipvs::ServiceKey, Op>,
    /// Removed endpoints whose late answers may create flows ([`Strays`]).
    strays: Strays,
    retry: Timer,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            unswept: BTreeMap::new(),
            strays: Strays::default(),
            retry: Timer::doubling(RETRY, RETRY),
        }
    }
}

impl Flows {
    /// Notes the flows that `op` makes stale. It took effect at `now`; its virtual server was `known` before.
    pub(super) fn note(&mut self, op: &Op, known: Option<&ObservedServer>, now: Duration) {
        self.strays.record(op, known, now);
        if let Some(key) = op.service_key().filter(|_| Stale::may_result_from(op)) {
            self.unswept.insert(key, *op);
        }
    }

    /// Deletes the stale flows; `None` if no flow can be stale.
    ///
    /// After a failure, the next sweep looks for the same flows again.
    pub(super) fn sweep(
        &mut self,
        kernel: &mut impl Kernel,
        wanted: Wanted<'_>,
        now: Duration,
    ) -> Option<Result<Swept, Failure>> {
        let mut stale = Stale::from_ops(self.unswept.values(), wanted);
        stale.set_returned(self.strays.due(now));
        if stale.is_empty() {
            self.unswept.clear();
            self.retry.reset();
            return None;
        }
        let result = kernel.sweep_flows(&stale);
        match &result {
            Ok(_) => {
                self.unswept.clear();
                self.strays.record_sweep(stale.returned());
                self.retry.reset();
            }
            Err(_) => {
                // Otherwise they stay due, and rounds would follow each other without a pause.
                self.strays.postpone(stale.returned(), now + RETRY);
                self.retry.back_off(now);
            }
        }
        Some(result)
    }

    /// Returns when the next sweep is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let timers = [self.retry.due(), self.strays.next_due()];
        timers.into_iter().flatten().min()
    }

    #[cfg(test)]
    pub(super) fn unswept(&self) -> usize {
        self.unswept.len()
    }
}
