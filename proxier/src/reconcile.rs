//! The proxy of one node: the cluster, and rounds that make the dataplane serve it.
//!
//! ```text
//! Event ─▶ Snapshot ─plan─▶ Desired ─▶ Dataplane ─▶ what was applied
//!                     ▲                    │
//!                     └─── Capabilities ───┘
//! ```
//!
//! [`Proxier::sync`] compares only the objects that events touched. [`Proxier::resync`] reads the
//! kernel back and compares everything. `round.rs` has the steps of both, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::model::Cidr;
use crate::cluster::problem::Problem;
use crate::cluster::store::{Event, Snapshot, Touched};
use crate::dataplane::ipvs::filter::{Filter, FilterConfig};
use crate::dataplane::ipvs::ledger::{self, Ledger, LedgerFile};
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::op::Op;
use crate::dataplane::ipvs::{InsideMarks, Ipvs, Kernel, Wanted};
use crate::dataplane::{Applied, Dataplane, Extent, Failure, Planned};
use crate::plan::{Desired, Machine, PlanConfig, Planner};

mod budget;
mod earlier;
mod families;
mod health;
mod newcomers;
mod node;
mod problems;
mod round;
mod silence;
#[cfg(test)]
mod tests;

pub(crate) use newcomers::{Newcomers, Start};
use problems::KnownProblems;
pub(crate) use silence::Silence;

/// The proxy of one node: the cluster, the plan, and the dataplane that serves it.
#[derive(Debug)]
pub struct Proxier<D> {
    dataplane: D,
    cluster: Cluster,
    /// The ports whose health check may differ since the last call of [`Proxier::take_health_ports`].
    health_ports: BTreeSet<u16>,
    known_problems: Option<KnownProblems>,
}

/// The cluster as this node sees it, and the plan for it.
#[derive(Debug)]
struct Cluster {
    input: Input,
    planner: Planner,
    machine: Machine,
    newcomers: Newcomers,
    silence: Silence,
}

impl Cluster {
    fn planned(&self) -> Planned<'_> {
        Planned {
            snapshot: &self.input.snapshot,
            machine: &self.machine,
            planner: &self.planner,
        }
    }
}

/// The input from the cluster.
#[derive(Debug, Default)]
struct Input {
    snapshot: Snapshot,
    /// The Services that events touched since the last planning.
    touched: Touched,
    /// The Problems that no event carries, by kind in the plural.
    ///
    /// Examples are files that cannot be read and objects without a readable name.
    other_problems: BTreeMap<&'static str, Vec<Problem>>,
    /// Increases when these change.
    problems_revision: u64,
    /// Whether to drop `spec.externalIPs` of received Services.
    ignores_external_ips: bool,
}

/// The changes that a round would make.
#[derive(Clone, Debug)]
pub struct Preview {
    /// The Ops, in order.
    pub ops: Vec<Op>,
    /// Whether packet rules would be written.
    pub changes_rules: bool,
}

impl<D: Dataplane> Proxier<D> {
    /// Returns a proxier without input.
    pub fn of(dataplane: D, config: PlanConfig) -> Self {
        let mut input = Input::default();
        if config.weights.as_ref().is_some_and(|it| it.need_regions()) {
            input.snapshot.need_regions_for_all();
        }
        Self {
            dataplane,
            cluster: Cluster {
                input,
                planner: Planner::new(config),
                machine: Machine::default(),
                newcomers: Newcomers::default(),
                silence: Silence::default(),
            },
            health_ports: BTreeSet::new(),
            known_problems: None,
        }
    }

    /// Ignores the external IPs of Services (`--feature-gates=AllowServiceExternalIPs=false`).
    #[must_use]
    pub fn ignoring_external_ips(mut self, ignores: bool) -> Self {
        self.cluster.input.ignores_external_ips = ignores;
        self
    }

    /// Takes over what an earlier process learnt of endpoints.
    #[must_use]
    pub(crate) fn knowing(mut self, (newcomers, silence): (Newcomers, Silence)) -> Self {
        self.cluster.newcomers = newcomers;
        self.cluster.silence = silence;
        self
    }

    /// Returns which endpoints are new, and which do not answer.
    pub(crate) fn learnt(&self) -> (&Newcomers, &Silence) {
        (&self.cluster.newcomers, &self.cluster.silence)
    }

    /// Applies events to the snapshot.
    pub fn receive(&mut self, events: impl IntoIterator<Item = Event>) {
        let input = &mut self.cluster.input;
        for mut event in events {
            // Removed here and not by the planner, so that no reader of the snapshot needs the
            // setting.
            if input.ignores_external_ips {
                event.drop_external_ips();
            }
            input.snapshot.apply(event, &mut input.touched);
        }
    }

    /// Sets the addresses to which the connections to the API server led.
    ///
    /// The next round makes none of them local, because this node would lose its API server.
    pub fn set_api_servers(&mut self, addresses: Arc<BTreeSet<IpAddr>>) {
        self.cluster.machine.peers.api_servers = addresses;
    }

    /// Replaces the Problems of this `kind` that no event carries.
    pub fn set_other_problems(&mut self, kind: &'static str, problems: Vec<Problem>) {
        self.cluster.input.other_problems.insert(kind, problems);
        self.cluster.input.problems_revision += 1;
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
        if !self.is_complete() && !self.dataplane.has_own_state(self.cluster.planned())? {
            self.cluster.input.snapshot.accept_partial();
        }
        Ok(self.is_complete())
    }

    /// Returns whether the snapshot has complete lists of Services and EndpointSlices.
    ///
    /// A Service that an incomplete snapshot lacks may exist, and a round would delete its virtual servers.
    pub fn is_complete(&self) -> bool {
        self.snapshot().is_complete()
    }

    /// Returns the last known API objects.
    pub fn snapshot(&self) -> &Snapshot {
        &self.cluster.input.snapshot
    }

    /// Returns the planner of the last round.
    pub fn planner(&self) -> &Planner {
        &self.cluster.planner
    }

    /// Returns the plan of the last round, and what it was made from.
    pub fn planned(&self) -> Planned<'_> {
        self.cluster.planned()
    }

    /// Returns the plan of the last round.
    pub fn desired(&self) -> &Desired {
        self.cluster.planner.desired()
    }

    /// Returns what the planner knows of this machine, such as its addresses.
    pub fn machine(&self) -> &Machine {
        &self.cluster.machine
    }

    /// Consumes the proxier and returns its dataplane.
    pub fn into_dataplane(self) -> D {
        self.dataplane
    }

    /// Returns the dataplane.
    pub fn dataplane(&self) -> &D {
        &self.dataplane
    }

    /// Returns the dataplane, to change it.
    pub fn dataplane_mut(&mut self) -> &mut D {
        &mut self.dataplane
    }

    /// Returns when [`Proxier::sync`] has work even without an event, in time since boot.
    ///
    /// The work is a failed change to try again, connections of draining destinations to count, a write of
    /// the ledger or of rules to try again, flows to sweep, or missing schedulers to ask for again.
    pub fn next_due(&self) -> Option<Duration> {
        self.dataplane.next_due()
    }

    /// Returns when [`Proxier::sync`] has to judge endpoints again, in time since boot: at the end of a slow start, or to
    /// read what endpoints answered. Tenants choose how often, so this waits as a change of an object does.
    pub(crate) fn next_judgement(&self) -> Option<Duration> {
        let Cluster {
            newcomers, silence, ..
        } = &self.cluster;
        newcomers.due().into_iter().chain(silence.due()).min()
    }

    /// Programs the changes since the last round, and the work that is due.
    ///
    /// If the kernel's state is unknown, reads the kernel back first, as [`Proxier::resync`] does.
    ///
    /// # Errors
    /// If the kernel cannot be read; then nothing was changed. Other failures are in the result, and
    /// a later round tries them again.
    ///
    /// # Cost
    /// Proportional to the touched Services. A new endpoint costs two system calls. A removed one
    /// costs the same, and seven more when its last connection has ended.
    pub fn sync(&mut self, now: Duration) -> Result<Applied<D::Changes>, Failure> {
        match self.dataplane.is_known() {
            true => self.round(Extent::Pending, now),
            false => self.round(Extent::All, now),
        }
    }

    /// Reads the kernel and returns the changes that a round would make. Writes nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn changes(&mut self, now: Duration) -> Result<D::Changes, Failure> {
        self.prepare(Extent::All, now)
    }

    /// Plans as [`Proxier::changes`], without a comparison with the kernel.
    ///
    /// # Errors
    /// As [`Proxier::sync`].
    pub(crate) fn plan_all(&mut self, now: Duration) -> Result<(), Failure> {
        self.begin(Extent::All, now)
    }

    /// Reads the kernel back and repairs every difference from the plan.
    ///
    /// # Errors
    /// As [`Proxier::sync`].
    ///
    /// # Cost
    /// Linear in the size of the kernel's tables. Only differences are written.
    pub fn resync(&mut self, now: Duration) -> Result<Applied<D::Changes>, Failure> {
        self.round(Extent::All, now)
    }
}

impl<K: Kernel> Proxier<Ipvs<K>> {
    /// Returns a proxier without input that serves with IPVS.
    ///
    /// # Errors
    /// If the ledger's file exists and cannot be read.
    pub fn new(kernel: K, config: PlanConfig, file: LedgerFile) -> Result<Self, ledger::Error> {
        Ok(Self::of(Ipvs::new(kernel, file)?, config))
    }

    /// As [`Ipvs::excluding`].
    #[must_use]
    pub fn excluding(mut self, ranges: Vec<Cidr>) -> Self {
        self.dataplane = self.dataplane.excluding(ranges);
        self
    }

    /// As [`Ipvs::filtering`].
    #[must_use]
    pub fn filtering(mut self, config: FilterConfig) -> Self {
        self.dataplane = self.dataplane.filtering(config);
        self
    }

    /// Returns the plan of the last round in the terms of IPVS.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted::new(self.desired(), self.dataplane.marks())
    }

    /// As [`Ipvs::filter`].
    pub fn filter(&self) -> Option<&Filter> {
        self.dataplane.filter()
    }

    /// As [`Ipvs::observed`].
    pub fn observed(&self) -> &Observed {
        self.dataplane.observed()
    }

    /// As [`Ipvs::marks`].
    pub fn marks(&self) -> &InsideMarks {
        self.dataplane.marks()
    }

    /// As [`Ipvs::ledger`].
    pub fn ledger(&self) -> &Ledger {
        self.dataplane.ledger()
    }

    /// Returns the kernel.
    pub fn kernel(&mut self) -> &mut K {
        &mut self.dataplane.kernel
    }

    /// Reads the kernel and returns the changes that a round would make. Writes nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn preview(&mut self, now: Duration) -> Result<Preview, Failure> {
        Ok(Preview {
            ops: self.changes(now)?.ops.iter().collect(),
            changes_rules: self.filter().is_some_and(|filter| !filter.is_in_step()),
        })
    }
}
