//! The dataplane without IPVS: relays connections in this process.
//!
//! ```text
//!  plan ─▶ Served { listening, pools } ─▶ relay ─▶ endpoints
//! ```
//!
//! Each frontend of the plan listens, and has a pool of endpoints; two, if clients inside the cluster reach other
//! endpoints. No other program can change them, so only what changes in the plan is compared. Service addresses are
//! routes on `lo`, which others can change, and which outlive the process. All else is created again at each start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use relay::{AffinityRoom, InsideClients, Relay, RelayLimits, kernel_schedulers};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use schedulers::Registry;

use super::answer_path::AnswerPath;
use super::retry::Retries;
use super::{
    Applied, AppliedChange, Counts, Dataplane, Extent, Failure, Planned, Serving, applied,
};
use crate::cluster::model::Protocol;
use crate::cluster::problem::Problem;
use crate::cluster::store::Touched;
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Changed, FrontendPlan, Machine, Peers, RelayAbilities};
use crate::util::timer::Timer;

mod addresses;
mod change;
mod circles;
mod client_sources;
mod compare;
mod execute;
mod served;

use addresses::Addresses;
pub(crate) use change::Changes;
use change::{Change, NamedChange, Target};
use circles::LeftOut;
use client_sources::ClientSources;
use served::Served;

/// The longest pause between two counts of the connections of draining endpoints.
const LONGEST_COUNT: Duration = Duration::from_secs(30);

/// The dataplane of a process that relays itself.
#[derive(Debug)]
pub struct Userspace {
    relay: Relay,
    /// Whether another dataplane serves all but loopback addresses.
    is_beside: bool,
    capabilities: Capabilities,
    inside: Arc<InsideClients>,
    schedulers: Arc<Registry>,
    affinity: Arc<AffinityRoom>,
    client_sources: ClientSources,
    addresses: Addresses,
    served: BTreeMap<Frontend, Served>,
    /// The frontends that the next round compares.
    pending: BTreeSet<Frontend>,
    retries: Retries<Target>,
    /// The frontends that drain, or have endpoints that do.
    draining: BTreeSet<Frontend>,
    /// When their connections are counted next.
    drains: Timer,
    left_out: LeftOut,
    /// The addresses whose drift this round repairs.
    drifted: BTreeSet<IpAddr>,
    /// Whether the log says that few more frontends can be opened.
    is_nearly_full: bool,
}

impl Userspace {
    /// Starts the relay. Clients in the networks of `inside`, and processes of this node, are inside the
    /// cluster.
    ///
    /// # Errors
    /// If threads or sockets cannot be created.
    pub fn start(limits: RelayLimits, inside: InsideClients) -> Result<Self, Failure> {
        let relay = Relay::start(limits).map_err(|error| Failure {
            errno: Errno::from_io_error(&error),
            message: format!("starting the relay: {error}"),
        })?;
        let is_privileged = has_net_admin();
        // A kernel without nfnetlink refuses the socket. Then endpoints see this node's address,
        // and all else works.
        let answers = is_privileged.then(AnswerPath::open).transpose();
        Ok(Self {
            relay,
            is_beside: false,
            capabilities: Capabilities {
                // The relay could not keep SCTP's associations of several addresses.
                unsupported: [Protocol::Sctp].into(),
                has_full_affinity: true,
                lacks_answers: true,
                ..Capabilities::default()
            },
            inside: Arc::new(inside),
            schedulers: kernel_schedulers(),
            affinity: Arc::default(),
            client_sources: ClientSources::new(answers.unwrap_or_default()),
            addresses: Addresses::open(is_privileged)?,
            served: BTreeMap::new(),
            pending: BTreeSet::new(),
            retries: Retries::default(),
            draining: BTreeSet::new(),
            drains: Timer::doubling(Duration::from_secs(1), LONGEST_COUNT),
            left_out: LeftOut::default(),
            drifted: BTreeSet::new(),
            is_nearly_full: false,
        })
    }

    /// Makes Services choose among the schedulers of `registry` instead of the kernel's.
    pub fn choosing(self, registry: Registry) -> Self {
        Self {
            schedulers: Arc::new(registry),
            ..self
        }
    }

    /// Makes the relay serve only the frontends that need one ([`Frontend::needs_relay`]), and no address local.
    pub(crate) fn beside_another(self) -> Self {
        Self {
            is_beside: true,
            ..self
        }
    }

    /// Returns the netlink port of our changes of addresses, which notifications carry.
    pub(crate) fn addresses_port(&self) -> u32 {
        self.addresses.port()
    }

    /// Closes all frontends and waits until the connections have ended, for at most `patience`.
    pub fn stop(mut self, patience: Duration) {
        // In this order: connections need the way of answers until they end.
        self.relay.stop(patience);
        self.client_sources.remove();
    }

    /// Returns whether this relay serves the frontend, if the plan has it.
    fn serves(&self, frontend: &Frontend) -> bool {
        !self.is_beside || frontend.needs_relay()
    }

    /// Adds the schedulers of a plan that this relay lacks to the missing ones. Returns whether it lacks one.
    fn ask_for_schedulers(&mut self, plan: &FrontendPlan) -> bool {
        let mut is_any_new = false;
        for balancing in plan.balancings() {
            let wanted = &balancing.scheduler;
            if !self.schedulers.names().any(|known| *known == **wanted) {
                let missing = &mut self.capabilities.missing_schedulers;
                is_any_new |= missing.insert(wanted.clone());
            }
        }
        is_any_new
    }
}

impl Dataplane for Userspace {
    type Changes = Changes;

    fn machine(&mut self) -> Result<Machine, Failure> {
        self.addresses.machine()
    }

    fn peers(&mut self) -> Result<Peers, Failure> {
        Ok(self.addresses.peers())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn is_known(&self) -> bool {
        self.is_beside || self.addresses.is_known
    }

    /// Nothing serves while no process of ours runs.
    fn has_own_state(&mut self, _: Planned<'_>) -> Result<bool, Failure> {
        Ok(false)
    }

    fn begin(
        &mut self,
        planned: Planned<'_>,
        _: &Touched,
        extent: Extent,
        _: Duration,
    ) -> Result<(), Failure> {
        let (machine, snapshot) = (planned.machine, planned.snapshot);
        if extent == Extent::All {
            self.inside.set_own(machine.addresses.clone());
            self.capabilities.relay = Some(RelayAbilities {
                keeps_sources: self.client_sources.check(machine),
            });
            // For pools that get no new clients.
            let (pools, now) = (
                self.served.values().flat_map(Served::pools),
                self.relay.now(),
            );
            pools.for_each(|(_, pool)| pool.endpoints.forget_clients(now));
        }
        let served = self.served.keys().map(|it| (it.address, it.port));
        self.capabilities.node_port_addresses = planned.earlier_node_ports(served);
        // Those whose Service is deleted end at once.
        let is_orphan = |frontend: &&Frontend| {
            let served = self.served.get(frontend);
            served.is_some_and(|served| !snapshot.has_service(&served.plan.owner.service))
        };
        self.pending
            .extend(self.draining.iter().filter(is_orphan).copied());
        Ok(())
    }

    fn follow(&mut self, planned: Planned<'_>, changed: &Changed, _: Duration) -> bool {
        let desired = planned.desired();
        self.client_sources.follow(desired, changed);
        let mut needs_plan = false;
        for frontend in &changed.frontends {
            if self.serves(frontend) {
                self.pending.insert(*frontend);
                let plan = desired.frontends.get(frontend);
                needs_plan |= plan.is_some_and(|plan| self.ask_for_schedulers(plan));
            }
        }
        self.pending.extend(self.circling(desired, changed));
        if !self.is_beside {
            self.addresses.pending.extend(&changed.addresses);
        }
        needs_plan
    }

    fn observe(&mut self, _: Planned<'_>, extent: Extent, now: Duration) -> Result<bool, Failure> {
        if !self.is_beside && (extent == Extent::All || self.addresses.are_suspect) {
            self.drifted = self.addresses.read()?;
        }
        let again = match extent {
            Extent::All => {
                self.retries.try_all();
                self.retries.targets().copied().collect()
            }
            Extent::Pending => self.retries.take_due(now),
        };
        for target in again {
            match target {
                Target::Frontend(frontend) => _ = self.pending.insert(frontend),
                Target::Address(address) => _ = self.addresses.pending.insert(address),
            }
        }
        if self.drains.is_due(now) {
            self.pending.extend(&self.draining);
        }
        Ok(false)
    }

    fn retire(
        &mut self,
        planned: Planned<'_>,
        _: Extent,
        now: Duration,
    ) -> Result<BTreeSet<IpAddr>, Failure> {
        for frontend in self.pending.clone() {
            self.leave(frontend, planned, now);
        }
        let is_leaving = |frontend: &&Frontend| {
            let served = self.served.get(frontend);
            served.is_some_and(|served| served.leaving.is_some())
        };
        let leaving = self.draining.iter().filter(is_leaving);
        let addresses = leaving.map(|frontend| frontend.address);
        let before = planned.planner.kept_addresses();
        // Another machine may have the address of a node port by now.
        let is_service_address = |address: &IpAddr| {
            let is_local = before.contains(address) || self.addresses.has(address);
            is_local && !planned.machine.has(address)
        };
        Ok(addresses.filter(is_service_address).collect())
    }

    fn changes(
        &mut self,
        planned: Planned<'_>,
        _: Extent,
        now: Duration,
    ) -> Result<Changes, Failure> {
        let mut changes = Changes {
            drifted: std::mem::take(&mut self.drifted),
            ..Changes::default()
        };
        for frontend in std::mem::take(&mut self.pending) {
            self.compare(frontend, planned, now, &mut changes);
        }
        self.addresses.compare(planned.desired(), &mut changes.list);
        if changes.list.len() > 1 {
            changes.sort(&planned.first_addresses());
        }
        Ok(changes)
    }

    fn apply(
        &mut self,
        planned: Planned<'_>,
        changes: Changes,
        extent: Extent,
        now: Duration,
    ) -> Applied<Changes> {
        let mut applied = Applied::of(changes);
        for change in &applied.changes.list {
            let outcome = self.execute(change, planned.desired());
            if outcome.is_err() {
                self.retries.add(change.target(), now);
            }
            applied.outcomes.extend([outcome.map_err(Box::new)]);
        }
        self.retries.settle();
        self.wait_for_connections(now);
        applied.has_tried_all = extent == Extent::All || self.retries.next_due().is_none();
        applied
    }

    fn report(
        &self,
        planned: Planned<'_>,
        applied: &Applied<Changes>,
        each: &mut dyn FnMut(AppliedChange<'_>),
    ) {
        let changes = &applied.changes;
        for (change, outcome) in changes.list.iter().zip(applied.outcomes.iter()) {
            each(AppliedChange {
                kind: change.kind(),
                count: 1,
                line: &NamedChange {
                    change,
                    planned,
                    left: &changes.left,
                },
                reason: changes.reason(change),
                outcome,
            });
        }
    }

    fn repairs(&self, applied: &Applied<Changes>) -> Option<String> {
        let changes = applied.changes.list.iter().zip(applied.outcomes.iter());
        let repaired = changes.filter_map(|(change, outcome)| match change.target() {
            Target::Address(it) if outcome.is_ok() => Some(it),
            _ => None,
        });
        let repaired = repaired.filter(|it| applied.changes.drifted.contains(it));
        applied::repairs(None::<Change>, repaired.collect())
    }

    fn counts(&self, planned: Planned<'_>) -> Counts {
        let desired = planned.desired();
        let draining = self.draining.iter().filter_map(|it| self.served.get(it));
        let draining = draining.flat_map(Served::pools);
        Counts {
            frontends: match self.is_beside {
                true => desired.needing_relay().count(),
                false => desired.frontends.len(),
            },
            draining: draining.map(|(_, pool)| pool.draining.len()).sum(),
        }
    }

    fn destinations(&self, planned: Planned<'_>) -> usize {
        let plans = planned.desired().frontends.iter();
        let plans = plans.filter(|(frontend, _)| self.serves(frontend));
        plans.map(|(_, plan)| plan.endpoint_count()).sum()
    }

    fn serving(&self, frontend: &Frontend) -> Serving {
        let served = self.served.get(frontend);
        let pools = || served.into_iter().flat_map(Served::pools);
        Serving {
            inside: None,
            draining: pools()
                .flat_map(|(_, pool)| &pool.draining)
                .map(|(it, until)| (*it, *until))
                .collect(),
            relayed: Some(
                pools()
                    .flat_map(|(_, pool)| pool.endpoints.states())
                    .collect(),
            ),
        }
    }

    fn next_due(&self) -> Option<Duration> {
        let timers = [self.retries.next_due(), self.drains.due()];
        timers.into_iter().flatten().min()
    }

    fn problems(&self, planned: Planned<'_>) -> Vec<Problem> {
        self.left_out.problems(planned.desired())
    }

    fn problems_revision(&self) -> u64 {
        self.left_out.revision
    }

    fn refusal(&self, planned: Planned<'_>) -> Option<String> {
        let desired = planned.desired();
        let planned = desired.frontends.len() + desired.addresses.len();
        let refused = self.retries.targets().count();
        (refused * 2 > planned)
            .then(|| format!("the kernel refuses {refused} of {planned} frontends and addresses"))
    }

    fn distrust_addresses(&mut self) {
        self.addresses.are_suspect = true;
    }
}

/// Returns whether this thread has CAP_NET_ADMIN.
fn has_net_admin() -> bool {
    let sets = rustix::thread::capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN))
}
