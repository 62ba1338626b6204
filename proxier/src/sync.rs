//! Rounds that make the kernel match the cluster.
//!
//! ```text
//! Event ─▶ Snapshot ─plan─▶ Desired ──┐
//!             Dataplane ─▶ Observed ──┴─diff─▶ Vec<Op> ─apply─▶ Vec<Outcome>
//! ```
//!
//! [`Proxier::sync`] compares only what events touched. [`Proxier::resync`] reads the kernel back and
//! compares everything. `round.rs` has the steps of both, in order.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::dataplane::{Dataplane, Failure};
use crate::filter::{Filter, FilterConfig};
use crate::ledger::{self, Ledger, LedgerFile};
use crate::model::Cidr;
use crate::op::Op;
use crate::plan::{Desired, Machine, PlanConfig, Planner};
use crate::problem::Problem;
use crate::retry::Retries;
use crate::store::{Event, Snapshot, Touched};
use crate::timer::Timer;

mod applied;
mod flows;
mod kernel;
mod node;
mod round;
mod rules;
#[cfg(test)]
mod tests;

pub use applied::Applied;

use flows::Flows;
use kernel::KernelState;
use round::Extent;
use rules::Rules;

/// The proxy of one node: its input, its plan, and what it knows of the kernel.
#[derive(Debug)]
pub struct Proxier<D> {
    dataplane: D,
    input: Input,
    planner: Planner,
    machine: Machine,
    kernel: KernelState,
    ledger: Ledger,
    /// `None` for a proxy that writes no packet rules.
    rules: Option<Rules>,
    flows: Flows,
    retries: Retries,
    /// When a round is due because the last one learnt something that changes the plan.
    again: Timer,
    /// Ranges in which no virtual server is deleted.
    excluded: Vec<Cidr>,
}

/// What the cluster said.
#[derive(Debug, Default)]
struct Input {
    snapshot: Snapshot,
    /// The Services that events touched since the last planning.
    touched: Touched,
    /// Problems of objects that became no event, by their kind in the plural.
    unread: BTreeMap<&'static str, Vec<Problem>>,
}

/// The changes that a round would make.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The Ops, in order.
    pub ops: Vec<Op>,
    /// Whether packet rules would be written.
    pub changes_rules: bool,
}

/// Why a round could not be made at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel could not be read.
    #[error(transparent)]
    Dataplane(#[from] Failure),
    /// The ledger could not be read.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
}

impl<D: Dataplane> Proxier<D> {
    /// Returns a proxier without input.
    ///
    /// # Errors
    /// When the ledger's file exists and cannot be read.
    pub fn new(dataplane: D, config: PlanConfig, file: LedgerFile) -> Result<Self, Error> {
        Ok(Self {
            dataplane,
            input: Input::default(),
            planner: Planner::new(config),
            machine: Machine::default(),
            kernel: KernelState::default(),
            ledger: Ledger::open(file)?,
            rules: None,
            flows: Flows::default(),
            retries: Retries::default(),
            again: Timer::retry(),
            excluded: Vec::new(),
        })
    }

    /// Never deletes a virtual server whose address lies in `ranges` (`--ipvs-exclude-cidrs`).
    #[must_use]
    pub fn excluding(mut self, ranges: Vec<Cidr>) -> Self {
        self.excluded = ranges;
        self
    }

    /// Writes packet rules too.
    #[must_use]
    pub fn filtering(mut self, config: FilterConfig) -> Self {
        self.rules = Some(Rules::new(config));
        self
    }

    /// Applies events to the snapshot.
    pub fn receive(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.input.snapshot.apply(event, &mut self.input.touched);
        }
    }

    /// Replaces the problems of objects of this `kind` that became no event.
    pub fn set_unread(&mut self, kind: &'static str, problems: Vec<Problem>) {
        self.input.unread.insert(kind, problems);
    }

    /// Returns whether rounds may begin: the snapshot is complete, or the kernel has no state of ours.
    ///
    /// In the second case, the readable part of the input is programmed until all of it is readable.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn may_start(&mut self) -> Result<bool, Failure> {
        if !self.is_complete() && !self.finds_own_state()? {
            self.input.snapshot.accept_partial();
        }
        Ok(self.is_complete())
    }

    /// Returns whether the kernel has anything of ours: packet rules, service addresses, or owned
    /// virtual servers.
    fn finds_own_state(&mut self) -> Result<bool, Failure> {
        if self.dataplane.rules_generation()?.is_some() || !self.dataplane.addresses()?.is_empty() {
            return Ok(true);
        }
        let territory = self.territory();
        let owned = self.ledger.owned();
        let mut is_any = false;
        self.dataplane.virtual_servers(&mut |found| {
            is_any |= territory.is_ours(&found.server.service.key, owned);
        })?;
        Ok(is_any)
    }

    /// Another program changed our packet rules.
    pub fn distrust_rules(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.filter.distrust();
        }
    }

    /// Whether the snapshot is complete enough to program it: what an incomplete one lacks may exist.
    pub fn is_complete(&self) -> bool {
        self.input.snapshot.is_complete()
    }

    /// The packet rules, unless this proxier writes none.
    pub fn filter(&self) -> Option<&Filter> {
        self.rules.as_ref().map(|rules| &rules.filter)
    }

    /// The last known API objects.
    pub fn snapshot(&self) -> &Snapshot {
        &self.input.snapshot
    }

    /// The plan, as of the last round.
    pub fn desired(&self) -> &Desired {
        self.planner.desired()
    }

    /// Everything in the input that could not be used, sorted.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.planner.problems(&self.input.snapshot);
        problems.extend(self.input.unread.values().flatten().cloned());
        let node_name = &self.planner.config().node_name;
        problems.extend(node::missing(node_name, &self.input.snapshot));
        problems.sort();
        problems
    }

    /// The record of what is owned and what drains.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What planning knows of the machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The dataplane.
    pub fn dataplane(&mut self) -> &mut D {
        &mut self.dataplane
    }

    /// When [`Proxier::sync`] has work without an event, in time since boot: a failed Op to try again,
    /// connections of draining destinations to count, rules to write, flows to sweep.
    pub fn next_due(&self) -> Option<Duration> {
        let timers = [
            self.retries.next_due(),
            self.ledger.next_due(),
            self.rules.as_ref().and_then(|rules| rules.retry.due()),
            self.flows.next_due(),
            self.again.due(),
        ];
        timers.into_iter().flatten().min()
    }

    /// Reads the kernel and returns what a round would change. Writes nothing.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn preview(&mut self, now: Duration) -> Result<Preview, Error> {
        self.read_back(now)?;
        Ok(Preview {
            ops: self.compare(Extent::All),
            changes_rules: self.filter().is_some_and(|filter| !filter.is_in_step()),
        })
    }

    /// Programs what events changed since the last round, and what is due.
    ///
    /// Reads the kernel back as [`Proxier::resync`] does if its state is not known.
    ///
    /// # Errors
    /// When the kernel cannot be read; nothing was changed then. Other failures are in [`Applied`],
    /// and tried again when due.
    ///
    /// # Cost
    /// Proportional to the touched Services. A new endpoint: two system calls. A removed one: the
    /// same, and seven more when its last connection has ended.
    pub fn sync(&mut self, now: Duration) -> Result<Applied, Error> {
        match self.kernel.is_known {
            true => self.round(Extent::Pending, now),
            false => self.round(Extent::All, now),
        }
    }

    /// Reads the kernel back and repairs every difference from the plan.
    ///
    /// # Errors
    /// As [`Proxier::sync`].
    ///
    /// # Cost
    /// Linear in the size of the kernel's tables; writes nothing where nothing differs.
    pub fn resync(&mut self, now: Duration) -> Result<Applied, Error> {
        self.round(Extent::All, now)
    }
}
