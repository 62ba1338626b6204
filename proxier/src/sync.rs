//! Rounds of making the machine what it should be.
//!
//! ```text
//! Event ─▶ Snapshot ─plan─▶ Desired ──┐
//!             Dataplane ─▶ Observed ──┴─diff─▶ Vec<Op> ─apply─▶ Vec<Outcome>
//! ```
//!
//! A change goes through the Services it touches only: [`Proxier::sync`] compares what they should
//! be with what was programmed last. [`Proxier::resync`] reads the machine back and compares all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::{Dataplane, Failure, Outcome};
use crate::diff::{Terms, diff, diff_address, diff_server, sort};
use crate::model::{Cidr, ObjectName};
use crate::observed::Observed;
use crate::op::Op;
use crate::owned::{Owned, Territory};
use crate::packets::{self, Packets};
use crate::plan::{Changed, Config, Desired, Machine, Planner};
use crate::problem::Problem;
use crate::retry::Retries;
use crate::state_file::{self, Key, Record, State, StateFile};
use crate::store::{Event, Snapshot, Touched};

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
    /// What was learnt and is to be written with the next records.
    unwritten: Vec<Record>,
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

impl Input {
    /// What input that cost these problems as a whole is.
    pub fn given(unread: &[Problem]) -> Self {
        if unread.is_empty() {
            Self::Whole
        } else {
            Self::Partial
        }
    }
}

/// An applied round.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// What became of the packet rules, if they had to change.
    pub rules: Option<Outcome>,
    /// What was changed, in order.
    pub ops: Vec<Op>,
    /// What became of each Op, in order.
    pub outcomes: Vec<Outcome>,
    /// What somebody else had changed behind our back, where this round makes it good.
    pub drifted: Changed,
}

impl Applied {
    /// What failed.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.rules
            .iter()
            .chain(&self.outcomes)
            .filter_map(|outcome| outcome.as_ref().err())
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
    /// What is ours could not be recorded, so nothing was programmed: it could not be told from
    /// foreign virtual servers later.
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

    /// What the machine has, as read or made last.
    pub fn known(&self) -> &Observed {
        &self.known
    }

    /// When [`Proxier::sync`] has something to do even without an event: to try a failed Op again,
    /// to count the connections of draining destinations. In time since boot.
    pub fn next_due(&self) -> Option<Duration> {
        let retry = self.retries.next_due();
        let drain = self.state.drains.next_due();
        let rules = self.packets.as_ref().and_then(Packets::next_due);
        retry.into_iter().chain(drain).chain(rules).min()
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
    /// When the machine cannot be read or ownership cannot be recorded; nothing was changed then.
    /// Ops that fail are not errors here but outcomes, and are tried again when due.
    ///
    /// # Cost
    /// Proportional to the Services touched. An endpoint that comes: two system calls. One that
    /// goes: the same, and five more when its last connection is gone.
    pub fn sync(&mut self, now: Duration) -> Result<Applied, Error> {
        if !self.is_known {
            return self.resync(now);
        }
        self.update_plan();
        self.look_at_due(now)?;
        let mut ops = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        let territory = self.territory();
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, &self.state.owned);
        let terms = Terms {
            is_ours: &is_ours,
            drains: &self.state.drains,
        };
        let desired = self.planner.desired();
        for &key in &pending.virtual_servers {
            diff_server(key, desired, &self.known, &terms, &mut ops);
        }
        for &address in &pending.addresses {
            diff_address(address, desired, &self.known, &mut ops);
        }
        self.order(&mut ops);
        let result = self.apply(ops, now);
        if result.is_err() {
            // Nothing was programmed; it is still to be done.
            self.pending = pending;
        }
        result
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
        let mut applied = self.apply(ops, now)?;
        applied.drifted = drifted;
        self.state_file.tidy(&self.state)?;
        Ok(applied)
    }

    fn update_plan(&mut self) {
        let touched = std::mem::replace(&mut self.touched, Touched::none());
        let changed = self.planner.update(&self.snapshot, &self.machine, touched);
        for key in &changed.virtual_servers {
            self.call_back(*key);
        }
        if let Some(packets) = &mut self.packets {
            packets.follow(&changed, self.planner.desired(), self.snapshot.node());
        }
        self.pending.extend(&changed);
    }

    /// Ends the draining of destinations that are wanted.
    fn call_back(&mut self, key: ipvs::ServiceKey) {
        let Some(wanted) = self.planner.desired().virtual_servers.get(&key) else {
            return;
        };
        let drains = &mut self.state.drains;
        for destination in drains.of(&key) {
            if wanted.has_destination(&destination) {
                drains.end(&key, &destination);
                self.unwritten.extend(drained(key, destination));
            }
        }
    }

    /// Reads machine and tables, and plans; answers what the plan changed.
    fn read(&mut self, now: Duration) -> Result<Changed, Error> {
        let mut machine = self.dataplane.machine()?;
        machine.missing_schedulers = std::mem::take(&mut self.machine.missing_schedulers);
        self.machine = machine;
        self.known = self.dataplane.observe()?;
        if let Some(packets) = &mut self.packets
            && !self.dataplane.has_rules()?
        {
            packets.distrust();
        }
        self.is_known = true;
        self.pending = Changed::default();
        self.update_plan();
        self.recognise_drains(now);
        self.retries.all();
        Ok(std::mem::take(&mut self.pending))
    }

    /// Every difference between the plan and what was read.
    fn whole_diff(&self) -> Vec<Op> {
        let territory = self.territory();
        let is_ours = |key: &ipvs::ServiceKey| territory.is_ours(key, &self.state.owned);
        let terms = Terms {
            is_ours: &is_ours,
            drains: &self.state.drains,
        };
        let mut ops = diff(self.planner.desired(), &self.known, &terms);
        self.order(&mut ops);
        ops
    }

    fn order(&self, ops: &mut Vec<Op>) {
        let desired = self.planner.desired();
        if self.input == Input::Partial {
            ops.retain(|op| !takes_away(op, desired));
        }
        // Where everybody on this node, perhaps this process too, reaches the API server.
        let api_server = ObjectName::new("default", "kubernetes");
        let first: BTreeSet<IpAddr> = self
            .snapshot
            .service(&api_server)
            .into_iter()
            .flat_map(|service| service.cluster_ips.iter().copied())
            .collect();
        sort(ops, &first);
    }

    fn territory(&self) -> Territory {
        Territory {
            ours: self.snapshot.service_ranges().collect(),
            excluded: self.excluded.clone(),
        }
    }

    /// Reads again what failed and counts what drains, where that is due.
    fn look_at_due(&mut self, now: Duration) -> Result<(), Error> {
        let drains = self.state.drains.due(now);
        let retries = self.retries.due(now);
        for key in drains.into_iter().chain(retries) {
            let found = self.dataplane.virtual_server(&key)?;
            let destinations = found
                .as_ref()
                .map_or(&[][..], |server| &server.destinations);
            let gone = self.state.drains.counted(&key, destinations, now);
            let gone: Vec<Record> = gone
                .iter()
                .filter_map(|destination| drained(key, *destination))
                .collect();
            self.state_file.append(&gone)?;
            match found {
                Some(server) => self.known.virtual_servers.insert(key, server),
                None => self.known.virtual_servers.remove(&key),
            };
            self.pending.virtual_servers.insert(key);
        }
        self.pending
            .addresses
            .extend(self.retries.due_addresses(now));
        Ok(())
    }

    /// Finds destinations that were draining when this process began: unwanted, with weight 0.
    fn recognise_drains(&mut self, now: Duration) {
        let draining: BTreeSet<_> = self.state.drains.iter().map(|(key, ..)| key).collect();
        for key in draining {
            self.call_back(key);
        }
        for (key, wanted) in &self.planner.desired().virtual_servers {
            let Some(found) = self.known.virtual_servers.get(key) else {
                continue;
            };
            let quiet = found.destinations.iter().map(|entry| entry.destination);
            for destination in quiet.filter(|destination| destination.weight == 0) {
                if !wanted.has_destination(&destination.key) {
                    let deadline = now + wanted.drain;
                    let drains = &mut self.state.drains;
                    drains.begin(*key, destination.key, now, deadline);
                }
            }
        }
    }

    /// What of ours is not what we left.
    fn drift(&self, expected: &Observed) -> Changed {
        let mut drifted = Changed::default();
        let found = &self.known;
        let desired = self.planner.desired();
        for key in desired.virtual_servers.keys() {
            let (before, now) = (
                expected.virtual_servers.get(key),
                found.virtual_servers.get(key),
            );
            let is_same = match (before, now) {
                (Some(before), Some(now)) => before.is_like(now),
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                drifted.virtual_servers.insert(*key);
            }
        }
        for (address, source) in &expected.addresses {
            if found.addresses.get(address) != Some(source) {
                drifted.addresses.insert(*address);
            }
        }
        for address in found.addresses.keys() {
            if !expected.addresses.contains_key(address) {
                drifted.addresses.insert(*address);
            }
        }
        drifted
    }

    fn apply(&mut self, mut ops: Vec<Op>, now: Duration) -> Result<Applied, Error> {
        self.adopt(&ops)?;
        let rules = self.program_rules(&mut ops, now);
        let outcomes = self.dataplane.apply(&ops);
        let mut records = std::mem::take(&mut self.unwritten);
        for (op, outcome) in ops.iter().zip(&outcomes) {
            match outcome {
                Ok(()) => {
                    self.learn(op, now, &mut records);
                    self.known.record(op);
                }
                Err(failure) => self.fail(op, failure, now),
            }
        }
        self.retries.settle();
        self.state_file.append(&records)?;
        Ok(Applied {
            rules,
            ops,
            outcomes,
            drifted: Changed::default(),
        })
    }

    /// Sets the packet rules before the frontends that need them. While the kernel has not got them,
    /// no address becomes local that not everybody may use.
    fn program_rules(&mut self, ops: &mut Vec<Op>, now: Duration) -> Option<Outcome> {
        let packets = self.packets.as_mut()?;
        let was_in_step = packets.is_in_step();
        let outcome = packets.program(&mut self.dataplane, now);
        if !packets.is_in_step() {
            let restricted = self.planner.desired().restricted();
            ops.retain(
                |op| !matches!(op, Op::AddAddress(address, _) if restricted.contains(address)),
            );
        } else if !was_in_step {
            // What was held back is among what is missing.
            self.pending
                .addresses
                .extend(self.planner.desired().restricted());
            self.retries.at_once(now);
        }
        outcome
    }

    /// Records as ours what is about to be programmed.
    fn adopt(&mut self, ops: &[Op]) -> Result<(), Error> {
        let mut records = Vec::new();
        let mut last = None;
        for key in ops.iter().filter_map(Op::service_key) {
            if last == Some(key) {
                continue;
            }
            last = Some(key);
            let Some(wanted) = self.planner.desired().virtual_servers.get(&key) else {
                continue;
            };
            if self.state.owned.is_for(&key, &wanted.owner) {
                continue;
            }
            let name = wanted.owner.to_string();
            self.state.owned.insert(key, &name);
            records.extend(Key::new(key).map(|server| Record::Own {
                server,
                service: name.into(),
            }));
        }
        Ok(self.state_file.append(&records)?)
    }

    /// Draws the conclusions of an Op that took effect.
    fn learn(&mut self, op: &Op, now: Duration, records: &mut Vec<Record>) {
        let drains = &mut self.state.drains;
        match *op {
            Op::SetDestination(key, destination) => {
                let wanted = self.planner.desired().virtual_servers.get(&key);
                let unwanted = wanted.filter(|wanted| !wanted.has_destination(&destination.key));
                if let Some(server) = unwanted {
                    let deadline = now + server.drain;
                    drains.begin(key, destination.key, now, deadline);
                    records.extend(Key::new(key).map(|server| Record::Drain {
                        server,
                        destination: (destination.key.address, destination.key.port).into(),
                        until: deadline.as_secs(),
                    }));
                }
            }
            Op::DeleteDestination(key, destination) => {
                let was_draining = drains.end(&key, &destination);
                records.extend(drained(key, destination).filter(|_| was_draining));
            }
            Op::DeleteService(key) => {
                drains.end_all(&key);
                if self.state.owned.remove(&key) {
                    records.extend(Key::new(key).map(|server| Record::Disown { server }));
                }
            }
            _ => {}
        }
    }

    /// Sees to it that a failed Op is tried again.
    fn fail(&mut self, op: &Op, failure: &Failure, now: Duration) {
        if failure.errno.is_none() {
            // The socket failed: nobody knows what took effect.
            self.is_known = false;
        }
        if let Op::AddService(service) | Op::SetService(service) = op
            && failure.is_scheduler_missing()
            && let Some(scheduler) = service.scheduler
            && scheduler != self.planner.config().scheduler
        {
            // Planned again with the default, at once.
            self.machine.missing_schedulers.insert(scheduler);
            self.pending.virtual_servers.insert(service.key);
            self.retries.at_once(now);
            return;
        }
        self.retries.add(op, now);
    }
}

fn drained(key: ipvs::ServiceKey, destination: ipvs::DestinationKey) -> Option<Record> {
    Some(Record::Drained {
        server: Key::new(key)?,
        destination: (destination.address, destination.port).into(),
    })
}

/// Whether the Op removes a frontend, or its last destinations.
fn takes_away(op: &Op, desired: &Desired) -> bool {
    match op {
        Op::DeleteService(_) | Op::DeleteAddress(_) => true,
        Op::DeleteDestination(key, _) => is_empty(key, desired),
        Op::SetDestination(key, destination) => destination.weight == 0 && is_empty(key, desired),
        _ => false,
    }
}

fn is_empty(key: &ipvs::ServiceKey, desired: &Desired) -> bool {
    let wanted = desired.virtual_servers.get(key);
    wanted.is_none_or(|server| server.destinations.is_empty())
}
