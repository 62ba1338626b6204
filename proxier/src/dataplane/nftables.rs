//! Services as one table of nf_tables: no IPVS, no relay.
//!
//! ```text
//!  prerouting, output
//!   -110 new: guarded ─▶ source ranges, no endpoint: drop, reject, or return
//!             masqueraded, else service address ─▶ who is masqueraded: sets a bit of the mark
//!   -102 frontends: address, protocol, port ─▶ pick: draws a slot ─▶ endpoints: the same and the slot ─▶ destination NAT
//!    -99 new: translated ─▶ sticky ─▶ learn: the client's endpoint, for session affinity
//!             a service address still ─▶ refuse: unlisted ports
//!  forward, input
//!     packets of Services pass chains of other programs (`passing`)
//!  postrouting
//!     99 the bit, or an endpoint that connects to itself ─▶ masquerade
//! ```
//!
//! Two maps have the state: `frontends`, whose verdict names the pick, and `endpoints`, whose key has a *slot*, a
//! number below the number of slots of the frontend. All frontends with equal numbers share the chain of the pick.
//! So one endpoint's change is a few elements, and no set, map or chain belongs to a Service (except the chain of
//! source ranges).
//!
//! A connection is translated once: the kernel keeps it at its endpoint until it ends. So these rules see only the
//! first packet of each connection, and a removed endpoint keeps its connections.
//!
//! | step of a round | modules |
//! |---|---|
//! | begin, observe | `rules`: at the start, the slots that an earlier process chose |
//! | follow | `table`; `departures`: endpoints that left |
//! | changes, apply | `rules`: one transaction; `departures`: flows to endpoints that left |
//!
//! No service address is local, so the kernel needs a route to it for processes of the node.
//!
//! [`table()`] is a pure function of the plan. [`ServiceTable::follow`] and [`ServiceTable::take_commands`] give the
//! commands of a change; the law is that both give the same table, except for the order of slots that are drawn at random.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::nftables::{Command, RulesClient, Table};
use ipvs_netlink as ipvs;

use super::conntrack::Sweeper;
use super::ipvs::filter::{self, FilterConfig, NodeFacts};
use super::ipvs::linux::AddressTable;
use super::ipvs::{InsideMarks, Owners, Wanted};
use super::{Applied, AppliedChange, Counts, Dataplane, Extent, Failure, Planned, Serving};
use crate::cluster::problem::Problem;
use crate::cluster::store::Touched;
use crate::dataplane::packet_rules::FAMILIES;
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Changed, FrontendPlan, Machine, Peers, Scope};

mod affinity;
mod chains;
mod changes;
mod counted;
mod departures;
mod drains;
mod names;
mod order;
mod parts;
mod passing;
mod pick;
mod rounded;
mod rules;
mod served;
mod slots;
mod table;

pub(crate) use affinity::frontend;
use changes::NamedCommand;
pub use changes::{Changes, Content};
pub(crate) use counted::counted;
use departures::Departures;
use names::{ENDPOINTS, EXTERNAL_FRONTENDS};
pub(crate) use parts::endpoints;
use rounded::Rounded;
use rules::Rules;
pub(crate) use served::{Served, served, served_slots};
use slots::SCHEDULERS;
pub use table::{ServiceTable, table};

/// The name of the table, of family `inet`. Not that of the packet rules beside IPVS, so that a node can move from one
/// dataplane to the other while both tables exist.
pub const TABLE: &str = "ipvs-proxier-maps";

/// nf_tables of one network namespace: that of the thread that called [`Nftables::open`].
///
/// Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Nftables {
    machine: AddressTable,
    flows: Sweeper,
    rules: Rules,
    departures: Departures,
    capabilities: Capabilities,
    rounded: Rounded,
    owners: Arc<Owners>,
    /// The networks of Pods in the whole cluster, as configured.
    config: FilterConfig,
    /// The frontends of an earlier process, until the first round.
    found: Table,
}

impl Nftables {
    /// Opens the sockets, and leaves the addresses of `yield_devices` to the programs that serve them.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub fn open(config: FilterConfig, yield_devices: &[String]) -> Result<Self, Failure> {
        let client = RulesClient::open(TABLE).map_err(Failure::netfilter_socket)?;
        Ok(Self {
            machine: AddressTable::open(yield_devices)?,
            flows: Sweeper::open()?,
            rules: Rules::new(client, config.clone()),
            departures: Departures::default(),
            rounded: Rounded::default(),
            owners: Arc::new(Owners::new(0)),
            capabilities: Capabilities {
                has_full_affinity: true,
                lacks_answers: true,
                ignores_limits: true,
                ..Capabilities::default()
            },
            config,
            found: Table::default(),
        })
    }

    /// Makes rounds note the names of frontends in `owners`.
    #[must_use]
    pub fn naming(mut self, owners: Arc<Owners>) -> Self {
        self.owners = owners;
        self
    }

    /// Checks that the kernel has nf_tables and that this process may use it.
    ///
    /// # Errors
    /// If not.
    pub fn check_permission(&mut self) -> Result<(), Failure> {
        self.rules.client().read_generation()?;
        Ok(())
    }

    /// Returns the netlink port of our changes of packet rules, which notifications carry.
    pub fn rules_port(&self) -> u32 {
        self.rules.port()
    }

    /// Returns the netlink port of our requests about addresses.
    pub fn addresses_port(&self) -> u32 {
        self.machine.port()
    }

    /// Returns the table of the plan; `None` before the first round.
    pub fn table(&self, planned: Planned<'_>) -> Option<Table> {
        let table = self.rules.table();
        table.map(|table| table.table(planned.desired()))
    }

    /// Calls `each` with the commands of changes that were not written.
    pub(crate) fn commands(
        &self,
        planned: Planned<'_>,
        changes: &Changes,
        each: &mut dyn FnMut(&dyn fmt::Display),
    ) {
        let desired = planned.desired();
        let mut each = |command: &Command| each(&NamedCommand { command, desired });
        match &changes.content {
            Content::Commands(commands) => commands.iter().for_each(each),
            Content::Table(_) => {
                let table = self.table(planned).unwrap_or_default();
                table.creation().for_each(|command| each(&command));
            }
        }
    }

    /// Notes the names of the frontends whose connections the table counts. The plan changed in those with the keys `changed`.
    fn name_counted(&self, planned: Planned<'_>, changed: BTreeSet<ipvs::ServiceKey>) {
        let Some(table) = self.rules.table() else {
            return;
        };
        // Without marks, the virtual servers are the frontends.
        let no_marks = InsideMarks::default();
        let frontends = Wanted::new(planned.desired(), &no_marks);
        self.owners.follow(&changed, frontends, |key| {
            Frontend::of(key).is_some_and(|frontend| table.counts(&frontend))
        });
    }

    /// Notes the endpoints of an earlier process that left while no process ran.
    fn note_found(&mut self, planned: Planned<'_>, now: Duration) {
        let mut before = BTreeMap::<Frontend, BTreeSet<SocketAddr>>::new();
        for set in FAMILIES.map(|family| self.found.sets.get(ENDPOINTS.of(family))) {
            for (key, endpoint) in set.into_iter().flat_map(|set| set.targets()) {
                let endpoints = frontend(key).map(|it| before.entry(it).or_default());
                endpoints.into_iter().for_each(|it| _ = it.insert(endpoint));
            }
        }
        for frontend in planned.desired().frontends.keys() {
            before.entry(*frontend).or_default();
        }
        for (frontend, endpoints) in before {
            (self.departures).note(planned, frontend, endpoints, None, now);
        }
    }
}

impl Dataplane for Nftables {
    type Changes = Changes;

    fn machine(&mut self) -> Result<Machine, Failure> {
        self.machine.read_machine()
    }

    fn peers(&mut self) -> Result<Peers, Failure> {
        Ok(self.machine.read_peers())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn is_known(&self) -> bool {
        self.rules.table().is_some()
    }

    fn has_own_state(&mut self, _: Planned<'_>) -> Result<bool, Failure> {
        Ok(self.rules.client().exists()?)
    }

    fn begin(
        &mut self,
        planned: Planned<'_>,
        touched: &Touched,
        _: Extent,
        now: Duration,
    ) -> Result<(), Failure> {
        if !self.is_known() {
            self.found = self.rules.read_frontends()?;
        }
        let found = FAMILIES.map(|family| {
            let set = self.found.sets.get(EXTERNAL_FRONTENDS.of(family));
            let keys = set.into_iter().flat_map(|set| set.elements());
            keys.filter_map(|element| frontend(&element.key))
        });
        let plans = planned.desired().frontends.iter();
        let external = plans.filter(|(frontend, plan)| {
            plan.profile.access.scope != Scope::Internal && !frontend.needs_relay()
        });
        let external = external.map(|(frontend, _)| *frontend);
        let served = found.into_iter().flatten().chain(external);
        let addresses = planned.earlier_node_ports(served.map(|it| (it.address, it.port)));
        self.capabilities.node_port_addresses = addresses;
        self.departures.end_orphans(planned.snapshot, touched, now);
        // Here too, because a round may fail before it applies anything.
        self.departures.limit(&mut self.flows, now);
        Ok(())
    }

    /// The planner replaces a missing scheduler by the default one, and a missing default one by rr.
    fn follow(&mut self, planned: Planned<'_>, changed: &Changed, now: Duration) -> bool {
        if self.is_known() {
            self.rules.follow(planned, changed);
            self.departures.follow(planned, changed, now);
        }
        self.rounded.follow(planned.desired(), changed);
        self.name_counted(
            planned,
            changed.frontends.iter().map(|it| (*it).into()).collect(),
        );
        let plans = changed.frontends.iter();
        let plans = plans.filter_map(|frontend| planned.desired().frontends.get(frontend));
        let all = plans.flat_map(FrontendPlan::balancings);
        let missing = &mut self.capabilities.missing_schedulers;
        let before = missing.len();
        for balancing in all.filter(|it| !SCHEDULERS.contains(&&*it.scheduler)) {
            missing.insert(balancing.scheduler.clone());
        }
        missing.len() > before
    }

    fn observe(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<bool, Failure> {
        if !self.is_known() {
            self.rules.start(planned, &self.found);
            self.name_counted(planned, BTreeSet::new());
            self.note_found(planned, now);
            self.departures.find(&mut self.flows, planned, now);
            self.found = Table::default();
        } else if extent == Extent::All {
            self.departures.forget_ended(&mut self.flows);
        }
        Ok(false)
    }

    /// Connections of a removed frontend continue without it, and its address is not local.
    fn retire(
        &mut self,
        _: Planned<'_>,
        _: Extent,
        _: Duration,
    ) -> Result<BTreeSet<IpAddr>, Failure> {
        Ok(BTreeSet::new())
    }

    fn changes(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<Changes, Failure> {
        self.rules.changes(planned.desired(), extent, now)
    }

    fn apply(
        &mut self,
        planned: Planned<'_>,
        mut changes: Changes,
        extent: Extent,
        now: Duration,
    ) -> Applied<Changes> {
        let desired = planned.desired();
        let written = self.rules.write(desired, &mut changes, now);
        // A refused transaction changes nothing, and a part of a table has no effect.
        let changes = match &written {
            Some(Ok(())) => changes,
            _ => Changes::default(),
        };
        let tidied = self.rules.tidy(desired, extent, now);
        // After the rules: before them, the next packet would create a deleted flow again.
        let flows = match self.rules.are_in_step() {
            true => self.departures.sweep(&mut self.flows, desired, now),
            false => None,
        };
        // After the sweep, which ends those whose time is over.
        self.departures.limit(&mut self.flows, now);
        Applied {
            rules: tidied.or(written),
            flows,
            outcomes: std::iter::repeat_n(Ok(()), changes.count()).collect(),
            changes,
            has_tried_all: true,
            ..Applied::default()
        }
    }

    fn report(
        &self,
        planned: Planned<'_>,
        applied: &Applied<Changes>,
        each: &mut dyn FnMut(AppliedChange<'_>),
    ) {
        applied.changes.report(planned.desired(), each);
    }

    fn repairs(&self, _: &Applied<Changes>) -> Option<String> {
        None
    }

    fn counts(&self, planned: Planned<'_>) -> Counts {
        let desired = planned.desired();
        Counts {
            frontends: desired.frontends.len() - desired.needing_relay().count(),
            draining: self.departures.draining(),
        }
    }

    fn destinations(&self, planned: Planned<'_>) -> usize {
        let plans = planned.desired().frontends.iter();
        let plans = plans.filter(|(frontend, _)| !frontend.needs_relay());
        plans.map(|(_, plan)| plan.endpoint_count()).sum()
    }

    fn serving(&self, frontend: &Frontend) -> Serving {
        Serving {
            draining: self.departures.of(frontend).collect(),
            ..Serving::default()
        }
    }

    fn has_written_rules(&self) -> bool {
        self.rules.are_in_step()
    }

    fn next_due(&self) -> Option<Duration> {
        match self.rules.are_in_step() {
            true => self.departures.next_due(),
            false => self.rules.retry_due(),
        }
    }

    fn problems_of_node(&self, planned: Planned<'_>) -> Vec<Problem> {
        let plans = || planned.desired().frontends.iter();
        let node = NodeFacts::of(planned.snapshot.node());
        filter::unknown_pods(&self.config, &node, |family| {
            plans().any(|(it, plan)| it.family() == family && plan.inside.is_some())
        })
    }

    fn problems(&self, planned: Planned<'_>) -> Vec<Problem> {
        self.rounded.problems(planned.desired())
    }

    fn problems_revision(&self) -> u64 {
        self.rounded.revision
    }

    fn refusal(&self, _: Planned<'_>) -> Option<String> {
        // The retry timer runs exactly while the last write of rules failed.
        let is_refused = self.rules.retry_due().is_some();
        is_refused.then(|| "the kernel refuses the packet rules".to_owned())
    }

    fn distrust_rules(&mut self) {
        self.rules.suspect();
    }

    /// No service address is local.
    fn distrust_addresses(&mut self) {}

    fn finds_changed_rules(&mut self) -> bool {
        self.rules.find_changes().unwrap_or_else(|_| {
            self.rules.suspect();
            true
        })
    }
}
