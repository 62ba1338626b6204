//! The steps of a round.
//!
//! ```text
//!  plan ─▶ read ─▶ compare ─▶ own ─▶ tighten rules ─▶ apply Ops ─▶ learn ─▶ loosen rules ─▶ sweep flows ─▶ record
//! ```
//!
//! The order keeps three promises:
//!
//! * A virtual server is in the ledger before it exists.
//! * Rules tighten before the Ops that need them, and loosen after.
//! * If the process is killed between two steps, the next process can continue from there.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::node::node_port_addresses;
use super::{Applied, Error, Outcomes, Proxier};
use crate::dataplane::ipvs::state::address_drift;
use crate::dataplane::ipvs::{KernelParts, Wanted};
use crate::dataplane::{Dataplane, Failure};
use crate::frontend::Frontend;
use crate::op::{Op, Ops};
use crate::plan::Changed;
use crate::store::Touched;

/// How much a round compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The objects that events touched, and those with due work.
    Pending,
    /// Everything, after reading the kernel back.
    All,
}

impl<D: Dataplane> Proxier<D> {
    /// Makes a round at `now`, in time since boot.
    pub(crate) fn round(&mut self, extent: Extent, now: Duration) -> Result<Applied, Error> {
        // The times of these lines show where a slow round spends its time.
        tracing::trace!(?extent, "round: begins");
        let drifted = match extent {
            Extent::All => self.read_back(now)?,
            Extent::Pending => self.read_due(now)?,
        };
        tracing::trace!("round: planned and read");
        let mut ops = self.compare(extent, now);
        tracing::trace!(ops = ops.len(), "round: compared");
        self.own(&ops, now);
        tracing::trace!("round: owned");
        // Before the rules that set their marks, if the frontends serve already: no packet has the marks yet, and a
        // packet with a mark that has no virtual server would reach the endpoints for clients outside.
        let mut all = match self.kernel.observed.virtual_servers.is_empty() {
            true => Ops::default(),
            false => ops.take_new_marks(),
        };
        let mut outcomes = Outcomes::default();
        self.apply(&all, &mut outcomes, now);
        let tightened = self.tighten_rules(&mut ops, now);
        tracing::trace!("round: tightened");
        self.apply(&ops, &mut outcomes, now);
        all.append(ops);
        let ops = all;
        self.settle(&ops);
        tracing::trace!("round: applied");
        let loosened = self.loosen_rules(now);
        // After the Ops: before them, the next packet would create a deleted flow again.
        let wanted = Wanted::new(self.planner.desired(), &self.marks);
        let flows = self.flows.sweep(&mut self.dataplane, wanted, now);
        let unrecorded = self.record(extent, now);
        tracing::trace!("round: recorded");
        Ok(Applied {
            // If there were two writes, the later one decides which rules the kernel has.
            rules: loosened.or(tightened),
            flows,
            ops,
            outcomes,
            unrecorded: unrecorded.err(),
            has_tried_all: extent == Extent::All || self.retries.next_due().is_none(),
            drifted,
            held_back: std::mem::take(&mut self.held_back),
            found_schedulers: self.schedulers.take_found(),
        })
    }

    /// Plans the Services that events touched. Returns what may differ in the kernel because of that.
    ///
    /// Ends the drains of destinations that are desired again.
    fn plan_touched(&mut self, now: Duration) -> KernelParts {
        // Before planning, which takes the touched Services.
        self.release_orphans();
        let snapshot = &self.input.snapshot;
        self.machine.node_port_addresses =
            node_port_addresses(snapshot, &self.machine, self.ledger.owned());
        self.schedulers.begin_round();
        let missing = &mut self.capabilities.missing_schedulers;
        (self.schedulers).ask_again(&mut self.dataplane, missing, now);
        let touched = std::mem::replace(&mut self.input.touched, Touched::none());
        let (machine, capabilities) = (&self.machine, &self.capabilities);
        let mut changed = (self.planner).update(snapshot, machine, capabilities, touched);
        // The planner replaces a missing scheduler by the default one, and a missing default one by rr. Each
        // pass finds another missing scheduler, so the loop ends.
        while self.schedulers.ask(
            &mut self.dataplane,
            self.planner.desired(),
            &changed,
            &mut self.capabilities.missing_schedulers,
            now,
        ) {
            let (machine, capabilities) = (&self.machine, &self.capabilities);
            let none = Touched::none();
            changed.extend((self.planner).update(snapshot, machine, capabilities, none));
        }
        self.follow_plan(changed)
    }

    /// Tells the ledger, the dataplane and the filter what changed in the plan. Returns what may differ in the kernel
    /// because of that.
    pub(crate) fn follow_plan(&mut self, changed: Changed) -> KernelParts {
        let marks = self.follow_marks(&changed);
        let wanted = Wanted::new(self.planner.desired(), &self.marks);
        let frontends = changed.frontends.iter();
        let mut servers: BTreeSet<_> = frontends.map(|it| ipvs::ServiceKey::from(*it)).collect();
        servers.extend(&marks.servers);
        for key in &servers {
            if let Some(wanted) = wanted.get(key) {
                self.ledger.end_desired(key, &wanted);
            }
        }
        self.dataplane.admit(wanted, &changed);
        if let Some(rules) = &mut self.rules {
            let node = self.input.snapshot.node();
            rules.filter.follow(wanted, &changed, node);
            rules.filter.follow_marks(wanted, &marks);
        }
        let addresses = changed.addresses.clone();
        self.untaken.0.extend(changed);
        self.untaken.1.extend(&servers);
        KernelParts {
            virtual_servers: servers,
            addresses,
            carrier: false,
        }
    }

    /// Plans, and reads the whole kernel. Returns the drift.
    pub(crate) fn read_back(&mut self, now: Duration) -> Result<KernelParts, Error> {
        let expected = self.kernel.expected();
        let mut ours = std::mem::take(&mut self.kernel.pending);
        let mut machine = self.dataplane.machine()?;
        let missing = std::mem::take(&mut self.capabilities.missing_schedulers);
        self.capabilities = self.dataplane.capabilities(&machine);
        // `Schedulers` asks for each name once.
        self.capabilities.missing_schedulers = missing;
        machine.foreign = std::mem::take(&mut self.machine.foreign);
        let peers = &mut machine.peers;
        peers.api_servers = std::mem::take(&mut self.machine.peers.api_servers);
        self.machine = machine;
        if let Some(rules) = self
            .rules
            .as_mut()
            .filter(|rules| rules.filter.needs_links())
        {
            rules.filter.set_links(&self.dataplane.link_addresses()?);
        }
        let marks = self.set_mark_key()?;
        ours.virtual_servers.extend(&marks.servers);
        if let Some(rules) = &mut self.rules {
            let wanted = Wanted::new(self.planner.desired(), &self.marks);
            rules.filter.follow_marks(wanted, &marks);
        }
        ours.extend(self.plan_touched(now));
        let wanted = Wanted::new(self.planner.desired(), &self.marks);
        let owned = self.ledger.owned();
        let mut drifted = (self.kernel).read(expected, &mut self.dataplane, wanted, owned, now)?;
        self.inherit();
        ours.extend(self.exclude_all_foreign());
        let wanted = Wanted::new(self.planner.desired(), &self.marks);
        let retired = self.ledger.retired().iter().map(|(key, _)| key);
        let draining = self.ledger.drains().virtual_servers().copied();
        let draining: Vec<_> = draining.chain(retired).collect();
        for key in &draining {
            if let Some(server) = wanted.get(key) {
                self.ledger.end_desired(key, &server);
            }
        }
        self.ledger.adopt(wanted, &self.kernel.observed, now);
        // Before the check of the rules, because the guards of retired frontends are rules.
        self.retire(&self.retirable(), now);
        ours.addresses.extend(self.keep_addresses());
        if let Some(rules) = &mut self.rules {
            rules.check(&mut self.dataplane, &self.ledger)?;
        }
        // A difference in an object that this round changes anyway is no drift: another program need not
        // have caused it.
        let is_ours = |key: &_| ours.virtual_servers.contains(key);
        drifted.virtual_servers.retain(|key| !is_ours(key));
        let addresses = &mut drifted.addresses;
        addresses.retain(|address| !ours.addresses.contains(address));
        drifted.carrier &= !ours.carrier;
        // The full comparison repeats each failed Op that is still needed.
        self.retries.try_all();
        self.kernel.is_known = true;
        self.kernel.knows_addresses = true;
        self.kernel.suspects_drift = false;
        self.kernel.follow_up.clear();
        Ok(drifted)
    }

    /// Plans, and reads the virtual servers whose failed Ops or draining destinations are due.
    ///
    /// Returns the drift of the service addresses if another program changed any. Only a resync finds
    /// other drift.
    fn read_due(&mut self, now: Duration) -> Result<KernelParts, Error> {
        let changed = self.plan_touched(now);
        self.kernel.pending.extend(changed);
        let retries = self.retries.take_due(now);
        self.kernel.follow_up.clear();
        // The retry timers are cleared already, so after a failed read no timer names the remaining keys.
        // Then the next round reads everything.
        self.kernel.is_known = false;
        let mut due = retries.virtual_servers;
        due.extend(self.ledger.due(now));
        for key in due {
            let found = self.dataplane.virtual_server(&key)?;
            self.ledger.count(&key, found.as_ref(), now);
            self.count_retired(&key, found.as_ref(), now)?;
            let servers = &mut self.kernel.observed.virtual_servers;
            match found {
                Some(found) => servers.insert(key, found.server),
                None => servers.remove(&key),
            };
            self.kernel.pending.virtual_servers.insert(key);
        }
        self.kernel.is_known = true;
        self.kernel.pending.addresses.extend(retries.addresses);
        let drifted = self.read_addresses()?;
        let keys = std::mem::take(&mut self.kernel.pending.virtual_servers);
        let changed = self.exclude_foreign(&keys);
        self.kernel.pending.virtual_servers = keys;
        self.kernel.pending.extend(changed);
        Ok(drifted)
    }

    /// Reads the service addresses if another program may have changed any. Returns the drift.
    fn read_addresses(&mut self) -> Result<KernelParts, Error> {
        if self.kernel.knows_addresses {
            return Ok(KernelParts::default());
        }
        let found = self.dataplane.addresses()?;
        let leftovers = found.leftovers.iter().map(|&(address, _)| address);
        let others: Vec<IpAddr> = leftovers.chain(found.outdated.iter().copied()).collect();
        let before = self.kernel.observed.replace_addresses(found);
        let observed = &self.kernel.observed;
        let found = (&observed.addresses, observed.carrier);
        let mut drifted = address_drift((&before.addresses, before.carrier), found);
        let pending = &mut self.kernel.pending;
        let ours = std::mem::take(&mut pending.addresses);
        let addresses = drifted.addresses.iter().copied();
        pending.addresses.extend(addresses.chain(others));
        pending.addresses.extend(&ours);
        drifted.addresses.retain(|address| !ours.contains(address));
        self.kernel.knows_addresses = true;
        // Our own Ops make the addresses unknown too: the kernel deletes routes with a device's last address.
        match std::mem::take(&mut self.kernel.suspects_drift) {
            true => Ok(drifted),
            false => Ok(KernelParts::default()),
        }
    }

    /// Records the virtual servers that `ops` create as owned. The comparison has recorded those that exist.
    fn own(&mut self, ops: &Ops, now: Duration) {
        let wanted = Wanted::new(self.planner.desired(), &self.marks);
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
    fn tighten_rules(&mut self, ops: &mut Ops, now: Duration) -> Option<Result<(), Failure>> {
        let rules = self.rules.as_mut()?;
        // The removal of a frontend changes the rules. So if none changed, no frontend needs a guard.
        if !rules.filter.is_in_step() {
            let territory = self.input.territory(&self.machine, &self.excluded);
            let wanted = Wanted::new(self.planner.desired(), &self.marks);
            let desired = wanted.desired();
            let servers = self.kernel.observed.virtual_servers.keys();
            let stale = servers.filter(|key| !wanted.contains(key));
            let stale = stale.filter(|key| territory.is_ours(key, self.ledger.owned()));
            let observed = &self.kernel.observed;
            let leftovers = observed.leftovers.iter().map(|&(address, _)| address);
            let addresses = observed.addresses.keys().chain(leftovers);
            let addresses = addresses
                .filter(|address| !self.machine.has(address))
                .filter(|address| !desired.addresses.contains_key(address));
            rules
                .filter
                .guard(stale.filter_map(|key| Frontend::of(&key)), addresses);
        }
        // Guards that no Op of this round needs: removing them in the same transaction saves a second one.
        rules.filter.release(&self.kernel.observed, &self.machine);
        let written = rules.write(&mut self.dataplane, &mut self.ledger, now);
        self.held_back = match rules.filter.is_in_step() {
            true => BTreeSet::new(),
            false => self.hold_back(ops),
        };
        written
    }

    /// Removes the Ops that create frontends with rules, and marks these frontends for the next round.
    ///
    /// Returns the virtual servers of these frontends.
    fn hold_back(&mut self, ops: &mut Ops) -> BTreeSet<ipvs::ServiceKey> {
        // Only new ones: an existing virtual server keeps its connections, and its rules may still be those
        // of an earlier write.
        let (keys, addresses) = self.wanted().needing_rules();
        let observed = &self.kernel.observed.virtual_servers;
        let pending = &mut self.kernel.pending;
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
    fn loosen_rules(&mut self, now: Duration) -> Option<Result<(), Failure>> {
        let rules = self.rules.as_mut()?;
        let has_released = rules.filter.release(&self.kernel.observed, &self.machine);
        // After a refused write, the retry writes the whole table, without these guards.
        if !has_released || !rules.filter.is_in_step() {
            return None;
        }
        rules.write(&mut self.dataplane, &mut self.ledger, now)
    }

    /// Applies the Ops part by part, and learns from each. Adds the outcome of each Op.
    fn apply(&mut self, ops: &Ops, outcomes: &mut Outcomes, now: Duration) {
        ops.for_each_part(self.dataplane.most_ops(), |part| {
            let results = self.dataplane.apply(part);
            self.learn(part, &results, now);
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
