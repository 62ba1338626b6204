//! The proxy of one node: state, and rounds that make the kernel match the cluster.
//!
//! ```text
//! Event ─▶ Snapshot ─plan─▶ Desired ──┐
//!             Dataplane ─▶ Observed ──┴─diff─▶ Ops ─apply─▶ Vec<Outcome>
//! ```
//!
//! [`Proxier::sync`] compares only the objects that events touched. [`Proxier::resync`] reads the
//! kernel back and compares everything. `round.rs` has the steps of both, in order.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::dataplane::ipvs::flows::Flows;
use crate::dataplane::ipvs::rules::Rules;
use crate::dataplane::ipvs::schedulers::Schedulers;
use crate::dataplane::ipvs::state::KernelState;
use crate::dataplane::ipvs::{InsideMarks, Wanted};
use crate::dataplane::{Dataplane, Failure};
use crate::filter::{Filter, FilterConfig};
use crate::ledger::{self, Ledger, LedgerFile, Territory};
use crate::model::Cidr;
use crate::observed::Observed;
use crate::op::Op;
use crate::plan::{Capabilities, Changed, Desired, Machine, PlanConfig, Planner};
use crate::problem::Problem;
use crate::retry::Retries;
use crate::store::{Event, Snapshot, Touched};

mod applied;
mod health;
mod node;
mod problems;
mod round;
#[cfg(test)]
mod tests;

pub use applied::Applied;
pub(crate) use applied::Outcomes;
pub(crate) use round::Extent;

use problems::KnownProblems;

/// The proxy of one node: its input, its plan, and the kernel's state as far as known.
#[derive(Debug)]
pub struct Proxier<D> {
    pub(crate) dataplane: D,
    pub(crate) input: Input,
    pub(crate) planner: Planner,
    pub(crate) machine: Machine,
    pub(crate) capabilities: Capabilities,
    /// The firewall marks of the plan.
    pub(crate) marks: InsideMarks,
    pub(crate) kernel: KernelState,
    pub(crate) ledger: Ledger,
    /// `None` for a proxy that writes no packet rules.
    pub(crate) rules: Option<Rules>,
    pub(crate) flows: Flows,
    pub(crate) retries: Retries,
    pub(crate) schedulers: Schedulers,
    /// The virtual servers that this round does not create, because the kernel lacks their rules.
    pub(crate) held_back: BTreeSet<ipvs_netlink::ServiceKey>,
    /// Address ranges in which no virtual server is deleted.
    pub(crate) excluded: Vec<Cidr>,
    /// The changes of the plan since the last call of [`Proxier::take_changes`].
    pub(crate) untaken: (Changed, BTreeSet<ipvs_netlink::ServiceKey>),
    known_problems: Option<KnownProblems>,
}

/// The input from the cluster.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) snapshot: Snapshot,
    /// The Services that events touched since the last planning.
    pub(crate) touched: Touched,
    /// The Problems that no event carries, by kind in the plural.
    ///
    /// Examples are files that cannot be read and objects without a readable name.
    pub(crate) other_problems: BTreeMap<&'static str, Vec<Problem>>,
    /// Increases when these change.
    pub(crate) problems_revision: u64,
    /// Whether to drop `spec.externalIPs` of received Services.
    pub(crate) ignores_external_ips: bool,
}

impl Input {
    /// Returns the address ranges that decide about ownership.
    pub(crate) fn territory(&self, machine: &Machine, excluded: &[Cidr]) -> Territory {
        let ranges = self.snapshot.service_cidrs().flat_map(|cidr| cidr.ranges);
        let is_plausible = |range: &Cidr| Territory::doubt(range, &machine.addresses).is_none();
        Territory {
            ours: ranges.filter(is_plausible).collect(),
            excluded: excluded.to_vec(),
        }
    }

    /// Returns a Problem for each service range that does not decide about ownership.
    fn doubtful_ranges(&self, machine: &Machine) -> Vec<Problem> {
        let mut problems = Vec::new();
        for cidr in self.snapshot.service_cidrs() {
            for (index, range) in cidr.ranges.iter().enumerate() {
                problems.extend(Territory::doubt(range, &machine.addresses).map(|doubt| {
                    let message =
                        format!("{doubt}; virtual servers in it are not deleted because of it");
                    let object = format!("ServiceCIDR {}", cidr.name);
                    Problem::new(object, format!("spec.cidrs[{index}]"), range, message)
                }));
            }
        }
        problems
    }
}

/// The changes that a round would make.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The Ops, in order.
    pub ops: Vec<Op>,
    /// Whether packet rules would be written.
    pub changes_rules: bool,
}

/// The error of a round that changed nothing.
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
    /// If the ledger's file exists and cannot be read.
    pub fn new(dataplane: D, config: PlanConfig, file: LedgerFile) -> Result<Self, Error> {
        Ok(Self {
            dataplane,
            input: Input::default(),
            planner: Planner::new(config),
            machine: Machine::default(),
            capabilities: Capabilities::default(),
            marks: InsideMarks::default(),
            kernel: KernelState::default(),
            ledger: Ledger::open(file)?,
            rules: None,
            flows: Flows::default(),
            retries: Retries::default(),
            schedulers: Schedulers::default(),
            held_back: BTreeSet::new(),
            excluded: Vec::new(),
            untaken: Default::default(),
            known_problems: None,
        })
    }

    /// Excludes virtual servers with an address in `ranges` from deletion (`--ipvs-exclude-cidrs`).
    #[must_use]
    pub fn excluding(mut self, ranges: Vec<Cidr>) -> Self {
        self.excluded = ranges;
        self
    }

    /// Makes the proxier write packet rules too.
    #[must_use]
    pub fn filtering(mut self, config: FilterConfig) -> Self {
        self.rules = Some(Rules::new(config));
        self
    }

    /// Ignores the external IPs of Services (`--feature-gates=AllowServiceExternalIPs=false`).
    #[must_use]
    pub fn ignoring_external_ips(mut self, ignores: bool) -> Self {
        self.input.ignores_external_ips = ignores;
        self
    }

    /// Applies events to the snapshot.
    pub fn receive(&mut self, events: impl IntoIterator<Item = Event>) {
        for mut event in events {
            // Removed here and not by the planner, so that no reader of the snapshot needs the
            // setting.
            if self.input.ignores_external_ips {
                event.drop_external_ips();
            }
            self.input.snapshot.apply(event, &mut self.input.touched);
        }
    }

    /// Sets the addresses to which the connections to the API server led.
    ///
    /// The next round makes none of them local, because this node would lose its API server.
    pub fn set_api_servers(&mut self, addresses: Arc<BTreeSet<IpAddr>>) {
        self.machine.peers.api_servers = addresses;
    }

    /// Replaces the Problems of this `kind` that no event carries.
    pub fn set_other_problems(&mut self, kind: &'static str, problems: Vec<Problem>) {
        self.input.other_problems.insert(kind, problems);
        self.input.problems_revision += 1;
    }

    /// Returns whether rounds may be made: the snapshot is complete, or the kernel has no state of
    /// ours.
    ///
    /// In the second case, marks the snapshot as complete: rounds program the readable part of the
    /// input until all of it can be read.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn may_start(&mut self) -> Result<bool, Failure> {
        if !self.is_complete() && !self.finds_own_state()? {
            self.input.snapshot.accept_partial();
        }
        Ok(self.is_complete())
    }

    /// Returns whether the kernel serves with anything of ours: packet rules, service addresses, or owned
    /// virtual servers.
    fn finds_own_state(&mut self) -> Result<bool, Failure> {
        if !self.dataplane.serves_alone() {
            return Ok(false);
        }
        if self.dataplane.rules_generation()?.is_some() || self.dataplane.addresses()?.have_ours() {
            return Ok(true);
        }
        // Last, because it costs three system calls per virtual server.
        let territory = self.input.territory(&self.machine, &self.excluded);
        let owned = self.ledger.owned();
        let mut has_owned = false;
        self.dataplane
            .virtual_servers(&mut owned.keys(), &mut |found| {
                has_owned |= territory.is_ours(&found.key, owned);
            })?;
        Ok(has_owned)
    }

    /// Notes that another program changed our packet rules, so that the next round repairs them.
    pub fn distrust_rules(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.filter.distrust();
        }
    }

    /// Compares the generation of the packet rules with that of our last write. Returns whether another
    /// program changed any rule since; then the next round repairs them.
    pub(crate) fn finds_changed_rules(&mut self) -> bool {
        let Some(rules) = &mut self.rules else {
            return false;
        };
        if !rules.filter.is_in_step() {
            return false;
        }
        let checked = rules.check(&mut self.dataplane, &self.ledger);
        if checked.is_err() {
            rules.filter.distrust();
        }
        !rules.filter.is_in_step()
    }

    /// Notes that another program changed service addresses or their device, so that the next round
    /// repairs them.
    pub fn distrust_addresses(&mut self) {
        self.kernel.knows_addresses = false;
        self.kernel.suspects_drift = true;
    }

    /// Returns whether the snapshot has complete lists of Services and EndpointSlices.
    ///
    /// A Service that an incomplete snapshot lacks may exist, and a round would delete its virtual servers.
    pub fn is_complete(&self) -> bool {
        self.input.snapshot.is_complete()
    }

    /// Returns the packet rules; `None` if this proxier writes none.
    pub fn filter(&self) -> Option<&Filter> {
        self.rules.as_ref().map(|rules| &rules.filter)
    }

    /// Returns the last known API objects.
    pub fn snapshot(&self) -> &Snapshot {
        &self.input.snapshot
    }

    /// Returns the planner of the last round.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Returns the state of the kernel as last read or written.
    pub fn observed(&self) -> &Observed {
        &self.kernel.observed
    }

    /// Returns the plan of the last round.
    pub fn desired(&self) -> &Desired {
        self.planner.desired()
    }

    /// Returns the plan of the last round in the terms of IPVS.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted::new(self.planner.desired(), &self.marks)
    }

    /// Returns the firewall marks of the plan.
    pub fn marks(&self) -> &InsideMarks {
        &self.marks
    }

    /// Returns whether service addresses need the device `kube-ipvs0`.
    ///
    /// Even without a service address, because Felix restarts whenever the device appears or disappears.
    pub(crate) fn needs_carrier(&self) -> bool {
        self.planner.config().service_addresses.use_carrier()
    }

    /// Returns the ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns what the planner knows of this machine, such as its addresses.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns what the planner knows of the dataplane, such as missing schedulers.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Consumes the proxier and returns its dataplane.
    pub fn into_dataplane(self) -> D {
        self.dataplane
    }

    /// Returns the dataplane.
    pub fn dataplane(&mut self) -> &mut D {
        &mut self.dataplane
    }

    /// Returns when [`Proxier::sync`] has work even without an event, in time since boot.
    ///
    /// The work is a failed Op to try again, connections of draining destinations to count, a write of
    /// the ledger or of rules to try again, flows to sweep, or missing schedulers to ask for again.
    pub fn next_due(&self) -> Option<Duration> {
        let timers = [
            self.retries.next_due(),
            self.ledger.next_due(),
            self.rules.as_ref().and_then(|rules| rules.retry.due()),
            self.flows.next_due(),
            self.schedulers.next_due(),
            self.kernel.follow_up.due(),
        ];
        timers.into_iter().flatten().min()
    }

    /// Reads the kernel and returns the changes that a round would make. Writes nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn preview(&mut self, now: Duration) -> Result<Preview, Error> {
        self.read_back(now)?;
        Ok(Preview {
            ops: self.compare(Extent::All, now).iter().collect(),
            changes_rules: self.filter().is_some_and(|filter| !filter.is_in_step()),
        })
    }

    /// Programs the changes since the last round, and the work that is due.
    ///
    /// If the kernel's state is unknown, reads the kernel back first, as [`Proxier::resync`] does.
    ///
    /// # Errors
    /// If the kernel cannot be read; then nothing was changed. Other failures are in [`Applied`], and
    /// a later round tries them again.
    ///
    /// # Cost
    /// Proportional to the touched Services. A new endpoint costs two system calls. A removed one
    /// costs the same, and seven more when its last connection has ended.
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
    /// Linear in the size of the kernel's tables. Only differences are written.
    pub fn resync(&mut self, now: Duration) -> Result<Applied, Error> {
        self.round(Extent::All, now)
    }
}
