//! Rounds of making the machine what it should be.
//!
//! ```text
//! Event ─▶ Snapshot ─plan─▶ Desired ──┐
//!             Dataplane ─▶ Observed ──┴─diff─▶ Vec<Op> ─apply─▶ Vec<Outcome>
//! ```
//!
//! A change goes through the Services it touches only: [`Proxier::sync`] compares what they should
//! be with what was programmed last. [`Proxier::resync`] reads the machine back and compares all.

use std::collections::BTreeMap;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::conntrack::{Strays, Swept};
use crate::dataplane::{Dataplane, Failure, Outcome};
use crate::model::Cidr;
use crate::observed::Observed;
use crate::op::Op;
use crate::owned::Owned;
use crate::packets::{self, Packets};
use crate::plan::{Changed, Config, Desired, Machine, Planner};
use crate::problem::Problem;
use crate::retry::{Retries, Wait};
use crate::state_file::{self, Key, Record, State, StateFile};
use crate::store::{Event, Snapshot, Touched};

mod apply;
mod compare;
mod look;
#[cfg(test)]
mod tests;

/// Everything that one node's proxy owns: what it was told, what it programs, what is its own.
#[derive(Debug)]
pub struct Proxier<D> {
    dataplane: D,
    snapshot: Snapshot,
    /// The Services that events touched since they were planned last.
    touched: Touched,
    planner: Planner,
    machine: Machine,
    /// What the machine has, as far as we did it or read it.
    known: Observed,
    /// Whether `known` can be trusted: it was read once, and no socket has failed since.
    is_known: bool,
    /// What may differ between `known` and the plan.
    pending: Changed,
    state: State,
    state_file: StateFile,
    /// What was learnt and is still to be written down.
    unwritten: Vec<Record>,
    /// When that is tried again that could not be written down.
    record_again: Wait,
    /// The virtual servers whose stale flows are still to be forgotten, with an Op that made them so:
    /// one of each, or they would be ever more while that fails.
    unswept: BTreeMap<ipvs::ServiceKey, Op>,
    /// Endpoints whose late answers may be in the way.
    strays: Strays,
    excluded: Vec<Cidr>,
    retries: Retries,
    /// The packet rules, unless somebody else sees to them.
    packets: Option<Packets>,
    input: Input,
    unread: BTreeMap<&'static str, Vec<Problem>>,
}

/// Whether what was read is all there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// What is absent does not exist.
    #[default]
    Whole,
    /// Some of it could not be read: what is absent may exist.
    Partial,
}

/// An applied round.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// What became of the packet rules, if they had to change.
    pub rules: Option<Result<(), Failure>>,
    /// What became of stale flows, if any could be.
    pub flows: Option<Result<Swept, Failure>>,
    /// What was changed, in order.
    pub ops: Vec<Op>,
    /// What became of each Op, in order.
    pub outcomes: Vec<Outcome>,
    /// Why it could not be recorded, if it could not. It is tried again; a process that starts before
    /// that takes what is new for foreign, unless it is in the cluster's service ranges.
    pub unrecorded: Option<Failure>,
    /// What somebody else had changed behind our back, where this round makes it good.
    pub drifted: Changed,
}

impl Applied {
    /// What failed.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        let rules = self.rules.iter().filter_map(|result| result.as_ref().err());
        let ops = self
            .outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err());
        let flows = self.flows.iter().filter_map(|result| result.as_ref().err());
        let ops = ops.map(|failure| &**failure);
        rules.chain(ops).chain(flows).chain(&self.unrecorded)
    }

    /// Whether `op` repairs what somebody else changed.
    pub fn is_repair(&self, op: &Op) -> bool {
        match op.service_key() {
            Some(key) => self.drifted.virtual_servers.contains(&key),
            None => op
                .address()
                .is_some_and(|address| self.drifted.addresses.contains(&address)),
        }
    }
}

/// Why a round could not be applied at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine could not be read.
    #[error(transparent)]
    Dataplane(#[from] Failure),
    /// What is ours could not be read.
    #[error(transparent)]
    State(#[from] state_file::Error),
}

impl<D: Dataplane> Proxier<D> {
    /// A proxier that has been told nothing yet.
    ///
    /// # Errors
    /// When the state file exists and cannot be read.
    pub fn new(dataplane: D, config: Config, mut state_file: StateFile) -> Result<Self, Error> {
        let state = state_file.load()?;
        Ok(Self {
            dataplane,
            snapshot: Snapshot::default(),
            touched: Touched::All,
            planner: Planner::new(config),
            machine: Machine::default(),
            known: Observed::default(),
            is_known: false,
            pending: Changed::default(),
            state,
            state_file,
            unwritten: Vec::new(),
            record_again: Wait::default(),
            unswept: BTreeMap::new(),
            strays: Strays::default(),
            excluded: Vec::new(),
            retries: Retries::default(),
            packets: None,
            input: Input::Whole,
            unread: BTreeMap::new(),
        })
    }

    /// Whether enough is known to program anything: what is missing in less may exist.
    pub fn is_complete(&self) -> bool {
        self.snapshot.is_complete()
    }

    /// Never deletes a virtual server whose address lies in `ranges`.
    #[must_use]
    pub fn excluding(mut self, ranges: Vec<Cidr>) -> Self {
        self.excluded = ranges;
        self
    }

    /// Sets packet rules, too.
    #[must_use]
    pub fn filtering(mut self, packets: packets::Config) -> Self {
        self.packets = Some(Packets::new(packets));
        self
    }

    /// Somebody else changed our packet rules.
    pub fn distrust_rules(&mut self) {
        if let Some(packets) = &mut self.packets {
            packets.distrust();
        }
    }

    /// The packet rules as they should be.
    pub fn packets(&self) -> Option<&Packets> {
        self.packets.as_ref()
    }

    /// Takes in events, which tell all there is or only part of it.
    ///
    /// While only part is known no frontend is removed or left without destinations: an object that
    /// cannot be read today was perhaps served yesterday.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>, input: Input) {
        for event in events {
            self.snapshot.apply(event, &mut self.touched);
        }
        if input == Input::Partial {
            self.snapshot.accept_partial();
        }
        if self.input != input {
            self.input = input;
            self.is_known = false;
        }
    }

    /// Says what was wrong with input that became no event, in place of what was said of its `kind`
    /// before.
    pub fn set_unread(&mut self, kind: &'static str, problems: Vec<Problem>) {
        self.unread.insert(kind, problems);
    }

    /// What we were told.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// What should be, as planned last.
    pub fn desired(&self) -> &Desired {
        self.planner.desired()
    }

    /// What of the input could not be read or was worked around, sorted.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.planner.problems(&self.snapshot);
        problems.extend(self.unread.values().flatten().cloned());
        problems.sort();
        problems
    }

    /// What is ours, by the Service port it serves.
    pub fn owned(&self) -> &Owned {
        &self.state.owned
    }

    /// What planning knows of the machine itself.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The machine.
    pub fn dataplane(&mut self) -> &mut D {
        &mut self.dataplane
    }

    /// When [`Proxier::sync`] has something to do even without an event: to try a failed Op again,
    /// to count the connections of draining destinations. In time since boot.
    pub fn next_due(&self) -> Option<Duration> {
        let retry = self.retries.next_due();
        let drain = self.state.drains.next_due();
        let rules = self.packets.as_ref().and_then(Packets::next_due);
        let strays = self.strays.next_due();
        retry
            .into_iter()
            .chain(drain)
            .chain(rules)
            .chain(strays)
            .chain(self.record_again.due())
            .min()
    }

    /// Reads the machine and works out what has to change. Writes nothing.
    ///
    /// # Errors
    /// When the machine cannot be read.
    pub fn plan(&mut self, now: Duration) -> Result<Vec<Op>, Error> {
        self.read(now)?;
        Ok(self.whole_diff())
    }

    /// Programs what events changed since the last round, and what is due.
    ///
    /// Reads the machine back as [`Proxier::resync`] does where what it has is not known.
    ///
    /// # Errors
    /// When the machine cannot be read; nothing was changed then. What fails otherwise is no error here
    /// but told in [`Applied`], and tried again when due.
    ///
    /// # Cost
    /// Proportional to the Services touched. An endpoint that comes: two system calls. One that
    /// goes: the same, and seven more when its last connection is gone.
    pub fn sync(&mut self, now: Duration) -> Result<Applied, Error> {
        if !self.is_known {
            return self.resync(now);
        }
        self.update_plan();
        self.look_at_due(now)?;
        self.recognise_pending_drains(now);
        let pending = std::mem::take(&mut self.pending);
        let ops = self.diff_of(&pending);
        Ok(self.apply(ops, now))
    }

    /// Reads the machine back, and programs whatever differs from the plan, who ever changed it.
    ///
    /// # Errors
    /// As [`Proxier::sync`].
    ///
    /// # Cost
    /// Linear in the size of the machine's tables; writes nothing where nothing differs.
    pub fn resync(&mut self, now: Duration) -> Result<Applied, Error> {
        let expected = self.is_known.then(|| std::mem::take(&mut self.known));
        self.is_known = false;
        let pending = std::mem::take(&mut self.pending);
        let changed = self.read(now)?;
        let mut drifted = Changed::default();
        if let Some(expected) = expected {
            drifted = self.drift(&expected);
            // What we were about to change ourselves is no drift.
            for ours in [&pending, &changed] {
                let keys = &mut drifted.virtual_servers;
                keys.retain(|key| !ours.virtual_servers.contains(key));
                let addresses = &mut drifted.addresses;
                addresses.retain(|address| !ours.addresses.contains(address));
            }
        }
        let ops = self.whole_diff();
        let mut applied = self.apply(ops, now);
        applied.drifted = drifted;
        if let Err(error) = self.state_file.tidy(&self.state) {
            applied.unrecorded.get_or_insert_with(|| error.into());
        }
        Ok(applied)
    }
}

/// The record that a destination drains until then.
fn draining(
    key: ipvs::ServiceKey,
    destination: ipvs::DestinationKey,
    until: Duration,
) -> Option<Record> {
    Some(Record::Drain {
        server: Key::new(key)?,
        destination: (destination.address, destination.port).into(),
        until: until.as_secs(),
    })
}

/// The record that a destination drains no more.
fn drained(key: ipvs::ServiceKey, destination: ipvs::DestinationKey) -> Option<Record> {
    Some(Record::Drained {
        server: Key::new(key)?,
        destination: (destination.address, destination.port).into(),
    })
}
