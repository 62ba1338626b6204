//! Applying the Ops of a round, with the packet rules before and after them.
//!
//! ```text
//!  own ─▶ tighten rules ─▶ apply Ops ─▶ learn ─▶ loosen rules ─▶ sweep flows ─▶ record
//! ```
//!
//! The order keeps three promises:
//!
//! * A virtual server is in the ledger before it exists.
//! * Rules tighten before the Ops that need them, and loosen after.
//! * If the process is killed between two steps, the next process can continue from there.
//!
//! nftables and IPVS share no transaction. So restricting rules are written before the Ops and permitting rules after:
//! no forbidden client is admitted in between. At a start all rules are written before the first Op, because an address
//! must not become local before its rules exist.

use std::collections::BTreeSet;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::{Changes, Ipvs, Kernel, Wanted};
use crate::dataplane::ipvs::op::{Op, Ops};
use crate::dataplane::{Applied, Extent, Failure, Outcomes, Planned};
use crate::plan::frontend::Frontend;

impl<K: Kernel> Ipvs<K> {
    /// Applies the Ops of a round.
    pub(super) fn apply_round(
        &mut self,
        planned: Planned<'_>,
        changes: Changes,
        extent: Extent,
        now: Duration,
    ) -> Applied<Changes> {
        let Changes { mut ops, drifted } = changes;
        self.own(planned, &ops, now);
        tracing::trace!("round: owned");
        // Before the rules that set their marks, if the frontends serve already: no packet has the marks yet, and a
        // packet with a mark that has no virtual server would reach the endpoints for clients outside.
        let mut all = match self.state.observed.virtual_servers.is_empty() {
            true => Ops::default(),
            false => ops.take_new_marks(),
        };
        let mut outcomes = Outcomes::default();
        self.apply_ops(planned, &all, &mut outcomes, now);
        let tightened = self.tighten_rules(planned, &mut ops, now);
        tracing::trace!("round: tightened");
        self.apply_ops(planned, &ops, &mut outcomes, now);
        all.append(ops);
        self.settle(&all);
        tracing::trace!("round: applied");
        let loosened = self.loosen_rules(planned, now);
        // After the Ops: before them, the next packet would create a deleted flow again.
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let flows = self.flows.sweep(&mut self.kernel, wanted, now);
        let unrecorded = self.record(extent, now);
        tracing::trace!("round: recorded");
        Applied {
            // If there were two writes, the later one decides which rules the kernel has.
            rules: loosened.or(tightened),
            flows,
            changes: Changes { ops: all, drifted },
            outcomes,
            unrecorded: unrecorded.err(),
            has_tried_all: extent == Extent::All || self.retries.next_due().is_none(),
            held_back: self.held_back.iter().map(ToString::to_string).collect(),
            found_schedulers: self.schedulers.take_found(),
        }
    }

    /// Records the virtual servers that `ops` create as owned. The comparison has recorded those that exist.
    fn own(&mut self, planned: Planned<'_>, ops: &Ops, now: Duration) {
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let mut count = 0;
        for key in ops.created() {
            if let Some(server) = wanted.get(&key) {
                count += usize::from(self.ledger.own(key, server.owner()));
            }
            // The queued records of a start would take more memory than the ledger itself.
            if self.ledger.is_queue_full() {
                let _ = self.ledger.flush(now);
            }
        }
        // After a start, insertions in order of the keys have left much spare memory.
        if count > self.ledger.owned().len() / 2 {
            self.ledger.pack();
        }
        if count > 0 {
            // A failure does not stop the round: Services need their virtual servers more than the next
            // process needs the records. The flush at the end of the round tries again and reports it.
            let _ = self.ledger.flush(now);
        }
    }

    /// Writes the rules that the Ops need.
    ///
    /// If the kernel refuses them, removes the Ops that create frontends that need rules.
    fn tighten_rules(
        &mut self,
        planned: Planned<'_>,
        ops: &mut Ops,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        // The removal of a frontend changes the rules. So if none changed, no frontend needs a guard.
        if !self.rules.as_ref()?.filter.is_in_step() {
            let territory = self.territory(planned);
            let rules = self.rules.as_mut()?;
            let wanted = Wanted::new(planned.desired(), &self.marks);
            let desired = wanted.desired();
            let servers = self.state.observed.virtual_servers.keys();
            let stale = servers.filter(|key| !wanted.contains(key));
            let stale = stale.filter(|key| territory.is_ours(key, self.ledger.owned()));
            let observed = &self.state.observed;
            let leftovers = observed.leftovers.iter().map(|&(address, _)| address);
            let addresses = observed.addresses.keys().chain(leftovers);
            let addresses = addresses
                .filter(|address| !planned.machine.has(address))
                .filter(|address| !desired.addresses.contains_key(address));
            let frontends = stale.filter_map(|key| Frontend::of(&key));
            rules.filter.guard(wanted, frontends, addresses);
        }
        let rules = self.rules.as_mut()?;
        // Guards that no Op of this round needs: removing them in the same transaction saves a second one.
        let wanted = Wanted::new(planned.desired(), &self.marks);
        (rules.filter).release(wanted, &self.state.observed, planned.machine);
        let written = rules.write(&mut self.kernel, wanted, &mut self.ledger, now);
        self.held_back = match rules.filter.is_in_step() {
            true => BTreeSet::new(),
            false => self.hold_back(planned, ops),
        };
        written
    }

    /// Removes the Ops that create frontends with rules, and marks these frontends for the next round.
    ///
    /// Returns the virtual servers of these frontends.
    fn hold_back(&mut self, planned: Planned<'_>, ops: &mut Ops) -> BTreeSet<ipvs::ServiceKey> {
        // Only new ones: an existing virtual server keeps its connections, and its rules may still be those
        // of an earlier write.
        let (keys, addresses) = Wanted::new(planned.desired(), &self.marks).needing_rules();
        let observed = &self.state.observed.virtual_servers;
        let pending = &mut self.state.pending;
        ops.retain(|op| match (op.service_key(), op) {
            (Some(key), _) if keys.contains(&key) && !observed.contains_key(&key) => {
                pending.virtual_servers.insert(key);
                false
            }
            (None, Op::AddAddress(address, _)) if addresses.contains(address) => {
                pending.addresses.insert(*address);
                false
            }
            _ => true,
        });
        keys.into_iter()
            .filter(|key| !observed.contains_key(key))
            .collect()
    }

    /// Removes the guards of frontends that the Ops deleted. If an Op failed, its guard stays.
    fn loosen_rules(&mut self, planned: Planned<'_>, now: Duration) -> Option<Result<(), Failure>> {
        let rules = self.rules.as_mut()?;
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let has_released = (rules.filter).release(wanted, &self.state.observed, planned.machine);
        // After a refused write, the retry writes the whole table, without these guards.
        if !has_released || !rules.filter.is_in_step() {
            return None;
        }
        rules.write(&mut self.kernel, wanted, &mut self.ledger, now)
    }

    /// Applies the Ops part by part, and learns from each. Adds the outcome of each Op.
    fn apply_ops(
        &mut self,
        planned: Planned<'_>,
        ops: &Ops,
        outcomes: &mut Outcomes,
        now: Duration,
    ) {
        ops.for_each_part(self.kernel.most_ops(), |part| {
            let results = self.kernel.apply(part);
            self.learn(planned, part, &results, now);
            outcomes.extend(results);
        });
    }

    /// Writes the ledger's queued records. A resync also checks the file and compacts it.
    fn record(&mut self, extent: Extent, now: Duration) -> Result<(), Failure> {
        if extent == Extent::All {
            // One stat(2) a period. A flush of new records checks too, but a quiet cluster has
            // none.
            self.ledger.check_file();
        }
        self.ledger.flush(now)?;
        match extent {
            Extent::All => self.ledger.compact(),
            Extent::Pending => Ok(()),
        }
    }
}
