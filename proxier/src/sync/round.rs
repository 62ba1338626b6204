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

use super::kernel::drift;
use super::node::node_port_addresses;
use super::{Applied, Error, Proxier};
use crate::dataplane::{Dataplane, Failure, Outcome};
use crate::diff::{DeletionRules, diff, diff_address, diff_server, sort};
use crate::frontend::Frontend;
use crate::ledger::Territory;
use crate::model::ObjectName;
use crate::op::Op;
use crate::plan::Changed;
use crate::store::{Snapshot, Touched};

/// How much a round compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The objects that events touched, and those with due work.
    Pending,
    /// Everything, after reading the kernel back.
    All,
}

impl<D: Dataplane> Proxier<D> {
    /// Makes a round at `now`, in time since boot.
    pub(super) fn round(&mut self, extent: Extent, now: Duration) -> Result<Applied, Error> {
        let drifted = match extent {
            Extent::All => self.read_back(now)?,
            Extent::Pending => self.read_due(now)?,
        };
        let mut ops = self.compare(extent);
        self.own(&ops, now);
        let tightened = self.tighten_rules(&mut ops, now);
        let outcomes = self.dataplane.apply(&ops);
        self.learn(&ops, &outcomes, now);
        let loosened = self.loosen_rules(now);
        let desired = self.planner.desired();
        let flows = self.flows.sweep(&mut self.dataplane, desired, now);
        let unrecorded = self.record(extent, now);
        Ok(Applied {
            rules: loosened.or(tightened),
            flows,
            ops,
            outcomes,
            unrecorded: unrecorded.err(),
            drifted,
        })
    }

    /// Plans the Services that events touched. Returns the differences in the plan.
    ///
    /// Ends the drains of destinations that are desired again.
    fn plan_touched(&mut self) -> Changed {
        let snapshot = &self.input.snapshot;
        self.machine.node_port_addresses =
            node_port_addresses(snapshot, &self.machine, self.ledger.owned());
        let touched = std::mem::replace(&mut self.input.touched, Touched::none());
        let changed = self
            .planner
            .update(&self.input.snapshot, &self.machine, touched);
        let desired = self.planner.desired();
        for key in &changed.virtual_servers {
            self.ledger.end_desired(key, desired);
        }
        if let Some(rules) = &mut self.rules {
            let node = self.input.snapshot.node();
            rules.filter.follow(desired, &changed, node);
        }
        changed
    }

    /// Plans, and reads the whole kernel. Returns the drift.
    pub(super) fn read_back(&mut self, now: Duration) -> Result<Changed, Error> {
        let expected = self.kernel.expected();
        let mut ours = std::mem::take(&mut self.kernel.pending);
        let mut machine = self.dataplane.machine()?;
        machine.missing_schedulers = std::mem::take(&mut self.machine.missing_schedulers);
        self.machine = machine;
        ours.extend(&self.plan_touched());
        let desired = self.planner.desired();
        self.kernel.observed = self.dataplane.observe(desired)?;
        if let Some(rules) = &mut self.rules {
            rules.check(&mut self.dataplane, &self.ledger)?;
        }
        let draining: Vec<_> = self.ledger.drains().virtual_servers().copied().collect();
        for key in &draining {
            self.ledger.end_desired(key, desired);
        }
        let observed = &self.kernel.observed;
        self.ledger.adopt(desired, observed);
        for key in desired.virtual_servers.keys() {
            self.ledger.recognise_drains(key, desired, observed, now);
        }
        let expected = expected.as_ref();
        let mut drifted = expected.map_or_else(Changed::default, |expected| {
            drift(expected, observed, desired)
        });
        // Where this round was about to write anyway, a difference is no drift.
        let is_ours = |key: &_| ours.virtual_servers.contains(key);
        drifted.virtual_servers.retain(|key| !is_ours(key));
        let addresses = &mut drifted.addresses;
        addresses.retain(|address| !ours.addresses.contains(address));
        self.retries.try_all();
        self.again.clear();
        self.kernel.is_known = true;
        Ok(drifted)
    }

    /// Plans, and reads the virtual servers whose failed Ops or draining destinations are due.
    ///
    /// Returns no drift: only a resync looks for it.
    fn read_due(&mut self, now: Duration) -> Result<Changed, Error> {
        let changed = self.plan_touched();
        self.kernel.pending.extend(&changed);
        let retries = self.retries.take_due(now);
        self.again.clear();
        let counts = self.ledger.drains().due(now).into_iter();
        for key in counts.chain(retries.virtual_servers) {
            let found = self.dataplane.virtual_server(&key);
            // The retry timers are cleared already. If a read fails, no timer would bring the remaining
            // keys back, so the next round must read everything.
            self.kernel.is_known = found.is_ok();
            let found = found?;
            self.ledger.count(&key, found.as_ref(), now);
            let servers = &mut self.kernel.observed.virtual_servers;
            match found {
                Some(found) => servers.insert(key, found.server),
                None => servers.remove(&key),
            };
            self.kernel.pending.virtual_servers.insert(key);
        }
        self.kernel.pending.addresses.extend(retries.addresses);
        let desired = self.planner.desired();
        let observed = &self.kernel.observed;
        for key in &self.kernel.pending.virtual_servers {
            self.ledger.recognise_drains(key, desired, observed, now);
        }
        Ok(Changed::default())
    }

    /// Returns the Ops that lead from the observed state to the plan, in the order to apply them.
    pub(super) fn compare(&mut self, extent: Extent) -> Vec<Op> {
        let pending = std::mem::take(&mut self.kernel.pending);
        let territory = self.territory();
        let (desired, observed) = (self.planner.desired(), &self.kernel.observed);
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, self.ledger.owned());
        let rules = DeletionRules {
            is_ours: &is_ours,
            drains: self.ledger.drains(),
        };
        let mut ops = Vec::new();
        match extent {
            Extent::All => ops = diff(desired, observed, &rules),
            Extent::Pending => {
                for &key in &pending.virtual_servers {
                    diff_server(key, desired, observed, &rules, &mut ops);
                }
                for &address in &pending.addresses {
                    diff_address(address, desired, observed, &mut ops);
                }
            }
        }
        if ops.len() > 1 {
            sort(&mut ops, &first_addresses(&self.input.snapshot));
        }
        ops
    }

    /// Records the desired virtual servers that `ops` create or change as owned.
    fn own(&mut self, ops: &[Op], now: Duration) {
        let desired = self.planner.desired();
        let (mut last, mut count) = (None, 0);
        for key in ops.iter().filter_map(Op::service_key) {
            // The Ops of a virtual server follow each other.
            if last.replace(key) == Some(key) {
                continue;
            }
            if let Some(wanted) = desired.virtual_servers.get(&key) {
                count += usize::from(self.ledger.own(key, &wanted.owner));
            }
        }
        if count > self.ledger.owned().len() / 2 {
            self.ledger.pack();
        }
        if count > 0 {
            // The flush at the end of the round tries again and reports the failure.
            let _ = self.ledger.flush(now);
        }
    }

    /// Writes the rules that the Ops need.
    ///
    /// If the kernel refuses them, removes the Ops that would admit clients outside the source ranges.
    fn tighten_rules(&mut self, ops: &mut Vec<Op>, now: Duration) -> Option<Result<(), Failure>> {
        let territory = self.territory();
        let rules = self.rules.as_mut()?;
        let desired = self.planner.desired();
        if !rules.filter.is_in_step() {
            let servers = self.kernel.observed.virtual_servers.keys();
            let stale = servers.filter(|key| !desired.virtual_servers.contains_key(key));
            let stale = stale.filter(|key| territory.is_ours(key, self.ledger.owned()));
            let addresses = self.kernel.observed.addresses.keys().copied();
            let own = &self.machine.addresses;
            let addresses = addresses
                .filter(|address| !own.contains(address))
                .filter(|address| !desired.addresses.contains_key(address));
            rules
                .filter
                .guard(stale.filter_map(Frontend::of), addresses);
        }
        // Removes guards that no Op of this round needs, in the same transaction.
        rules.filter.release(&self.kernel.observed, &self.machine);
        let written = rules.write(&mut self.dataplane, &mut self.ledger, now);
        if !rules.filter.is_in_step() {
            self.hold_back(ops);
        }
        written
    }

    /// Removes the Ops that create a frontend with source ranges, and marks it for the next round.
    fn hold_back(&mut self, ops: &mut Vec<Op>) {
        let (keys, addresses) = self.planner.desired().restricted();
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
    }

    /// Removes the guards that the Ops made superfluous. If an Op failed, its guard stays.
    fn loosen_rules(&mut self, now: Duration) -> Option<Result<(), Failure>> {
        let rules = self.rules.as_mut()?;
        let has_released = rules.filter.release(&self.kernel.observed, &self.machine);
        // After a refused write, the retry writes the whole table, without these guards.
        if !has_released || !rules.filter.is_in_step() {
            return None;
        }
        rules.write(&mut self.dataplane, &mut self.ledger, now)
    }

    /// Records the outcome of each Op in the ledger, the observed state and the retries.
    fn learn(&mut self, ops: &[Op], outcomes: &[Outcome], now: Duration) {
        let mut outcomes = outcomes.iter();
        // The Ops of a virtual server follow each other. Those of addresses have no key.
        for run in ops.chunk_by(|one, next| one.service_key() == next.service_key()) {
            for (op, outcome) in run.iter().zip(&mut outcomes) {
                match outcome {
                    Ok(()) => self.learn_success(op, now),
                    Err(failure) => self.learn_failure(op, failure, now),
                }
            }
            if let Some(key) = run.first().and_then(Op::service_key) {
                self.kernel.share(&key, self.planner.desired());
            }
        }
        self.retries.settle();
    }

    fn learn_success(&mut self, op: &Op, now: Duration) {
        match *op {
            Op::SetDestination(key, destination) => {
                let wanted = self.planner.desired().virtual_servers.get(&key);
                let stale = wanted.filter(|wanted| !wanted.has_destination(&destination.key));
                if let Some(server) = stale {
                    let deadline = now + server.drain;
                    self.ledger.drain(key, destination.key, now, deadline);
                }
            }
            Op::DeleteDestination(key, destination) => self.ledger.end(&key, &destination),
            Op::DeleteService(key) => self.ledger.disown(&key),
            _ => {}
        }
        self.flows.note(op, &self.kernel.observed, now);
        self.kernel.observed.record(op);
    }

    fn learn_failure(&mut self, op: &Op, failure: &Failure, now: Duration) {
        if failure.errno.is_none() {
            // The kernel's answer is lost, so only a resync tells which Ops took effect.
            self.kernel.is_known = false;
        }
        if let Op::AddService(service) | Op::SetService(service) = op
            && failure.is_scheduler_missing()
            && let Some(scheduler) = service.scheduler
            && self.machine.missing_schedulers.insert(scheduler)
        {
            // The next round plans this virtual server with the default scheduler, or with rr.
            self.kernel.pending.virtual_servers.insert(service.key);
            self.again.no_later_than(now);
            return;
        }
        self.retries.add(op, now);
    }

    /// Writes the ledger's queued records. A resync also checks the file and compacts it.
    fn record(&mut self, extent: Extent, now: Duration) -> Result<(), Failure> {
        if extent == Extent::All {
            self.ledger.check_file();
        }
        self.ledger.flush(now)?;
        match extent {
            Extent::All => self.ledger.compact(),
            Extent::Pending => Ok(()),
        }
    }

    /// Returns the address ranges that decide about ownership.
    pub(super) fn territory(&self) -> Territory {
        Territory {
            ours: self.input.snapshot.service_ranges().collect(),
            excluded: self.excluded.clone(),
        }
    }
}

/// Returns the addresses that are programmed before all others.
///
/// These are the cluster IPs of the API server, through which processes of this node, perhaps this one
/// too, reach it.
pub(super) fn first_addresses(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let api_server = ObjectName::new("default", "kubernetes");
    let service = snapshot.service(&api_server).into_iter();
    service
        .flat_map(|service| service.cluster_ips.iter().copied())
        .collect()
}
