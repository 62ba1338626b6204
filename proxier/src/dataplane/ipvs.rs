//! IPVS: virtual servers, service addresses, the packet rules beside them, and the flows that removals leave.
//!
//! | step of a round | modules |
//! |---|---|
//! | begin | [`schedulers`], [`marking`] (the key of firewall marks) |
//! | follow | [`marking`], [`inside_marks`], the packet rules |
//! | observe | [`state`], [`foreign`] (virtual servers of other programs) |
//! | retire | [`retire`] |
//! | changes | [`compare`] |
//! | apply | [`apply`], [`rules`], [`learn`], [`flows`] |

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs_netlink as ipvs;

use self::ledger::{Ledger, LedgerFile, Territory};
use super::{Applied, AppliedChange, Counts, Dataplane, Extent, Failure, Planned, Serving, Tally};
use crate::cluster::model::{Cidr, Family};
use crate::cluster::problem::Problem;
use crate::cluster::store::Touched;
use crate::dataplane::ipvs::filter::{Filter, FilterConfig};
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::op::Target;
use crate::dataplane::retry::Retries;
use crate::plan::frontend::Frontend;
use crate::plan::{Capabilities, Changed, Machine, Peers, service_ranges};

mod apply;
mod changes;
mod compare;
pub(crate) mod connections;
pub(crate) mod definition;
pub(crate) mod destinations;
pub(crate) mod diff;
#[cfg(any(test, feature = "kernel-in-memory"))]
pub(crate) mod fake;
pub(crate) mod filter;
mod flows;
mod foreign;
mod inside_marks;
pub(crate) mod kernel;
mod key;
mod learn;
pub(crate) mod ledger;
pub(crate) mod linux;
mod marking;
pub(crate) mod marks;
mod observe;
pub(crate) mod observed;
pub(crate) mod op;
mod owners;
mod retire;
mod rules;
mod schedulers;
pub(crate) mod split_map;
mod state;
mod strays;
mod wanted;

pub use changes::Changes;
pub(crate) use changes::NamedOp;
pub use inside_marks::{InsideMarks, MarkChanges};
pub use kernel::Kernel;
pub use owners::{Owner, Owners};
pub use wanted::{KernelParts, Wanted, WantedServer};

use flows::Flows;
use rules::Rules;
use schedulers::Schedulers;
use state::KernelState;

/// IPVS of one node: the state of its kernel as far as known, and what is remembered of earlier rounds.
#[derive(Debug)]
pub struct Ipvs<K> {
    /// The kernel.
    pub(crate) kernel: K,
    state: KernelState,
    capabilities: Capabilities,
    /// The firewall marks of the plan.
    marks: InsideMarks,
    /// What is owned, and what drains.
    pub(crate) ledger: Ledger,
    /// `None` if no packet rules are written.
    rules: Option<Rules>,
    flows: Flows,
    retries: Retries<Target>,
    schedulers: Schedulers,
    /// The drift that this round repairs.
    drifted: KernelParts,
    /// The virtual servers that this round does not create, because the kernel lacks their rules.
    held_back: BTreeSet<ipvs::ServiceKey>,
    /// Address ranges in which no virtual server is deleted.
    excluded: Vec<Cidr>,
    /// The names of virtual servers, for their metrics.
    owners: Arc<Owners>,
}

impl<K: Kernel> Ipvs<K> {
    /// Returns IPVS of this kernel, whose state is unknown.
    ///
    /// # Errors
    /// If the ledger's file exists and cannot be read.
    pub fn new(kernel: K, file: LedgerFile) -> Result<Self, ledger::Error> {
        Ok(Self {
            kernel,
            state: KernelState::default(),
            capabilities: Capabilities::default(),
            marks: InsideMarks::default(),
            ledger: Ledger::open(file)?,
            rules: None,
            flows: Flows::default(),
            retries: Retries::default(),
            schedulers: Schedulers::default(),
            drifted: KernelParts::default(),
            held_back: BTreeSet::new(),
            excluded: Vec::new(),
            owners: Arc::new(Owners::new(0)),
        })
    }

    /// Excludes virtual servers with an address in `ranges` from deletion (`--ipvs-exclude-cidrs`).
    #[must_use]
    pub fn excluding(mut self, ranges: Vec<Cidr>) -> Self {
        self.excluded = ranges;
        self
    }

    /// Makes rounds write packet rules too.
    #[must_use]
    pub fn filtering(mut self, config: FilterConfig) -> Self {
        self.rules = Some(Rules::new(config));
        self
    }

    /// Makes virtual servers of all protocols keep their connections, because another dataplane serves and IPVS leaves the
    /// node.
    #[must_use]
    pub(crate) fn leaving(mut self) -> Self {
        self.flows.is_leaving = true;
        self
    }

    /// Makes rounds note the names of virtual servers in `owners`.
    #[must_use]
    pub fn naming(mut self, owners: Arc<Owners>) -> Self {
        self.owners = owners;
        self
    }

    /// Returns the packet rules; `None` if none are written.
    pub fn filter(&self) -> Option<&Filter> {
        self.rules.as_ref().map(|rules| &rules.filter)
    }

    /// Returns the state of the kernel as last read or written.
    pub fn observed(&self) -> &Observed {
        &self.state.observed
    }

    /// Returns the firewall marks of the plan.
    pub fn marks(&self) -> &InsideMarks {
        &self.marks
    }

    /// Returns the ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the number of virtual servers whose flows wait to be swept.
    #[cfg(test)]
    pub(crate) fn unswept(&self) -> usize {
        self.flows.unswept()
    }

    /// Returns the address ranges that decide about ownership.
    fn territory(&self, planned: Planned<'_>) -> Territory {
        Territory {
            ours: service_ranges::plausible(planned.snapshot, planned.machine)
                .into_iter()
                .collect(),
            excluded: self.excluded.clone(),
        }
    }
}

impl<K: Kernel> Dataplane for Ipvs<K> {
    type Changes = Changes;

    fn machine(&mut self) -> Result<Machine, Failure> {
        self.kernel.machine()
    }

    fn peers(&mut self) -> Result<Peers, Failure> {
        self.kernel.peers()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn is_known(&self) -> bool {
        self.state.is_known
    }

    /// Packet rules, service addresses or owned virtual servers are ours.
    fn has_own_state(&mut self, planned: Planned<'_>) -> Result<bool, Failure> {
        if self.kernel.rules_generation()?.is_some() || self.kernel.addresses()?.have_ours() {
            return Ok(true);
        }
        // Last, because it costs three system calls per virtual server.
        let territory = self.territory(planned);
        let owned = self.ledger.owned();
        let mut has_owned = false;
        self.kernel
            .virtual_servers(&mut owned.keys(), &mut |found| {
                has_owned |= territory.is_ours(&found.key, owned);
            })?;
        Ok(has_owned)
    }

    fn begin(
        &mut self,
        planned: Planned<'_>,
        touched: &Touched,
        extent: Extent,
        now: Duration,
    ) -> Result<(), Failure> {
        if extent == Extent::All {
            self.begin_resync(planned)?;
        }
        self.release_orphans(planned.snapshot, touched);
        self.capabilities.node_port_addresses =
            observe::node_port_addresses(planned, self.ledger.owned());
        self.schedulers.begin_round();
        let missing = &mut self.capabilities.missing_schedulers;
        self.schedulers.ask_again(&mut self.kernel, missing, now);
        Ok(())
    }

    /// Tells the ledger and the filter what changed in the plan.
    ///
    /// The planner replaces a missing scheduler by the default one, and a missing default one by rr.
    fn follow(&mut self, planned: Planned<'_>, changed: &Changed, now: Duration) -> bool {
        let marks = self.follow_marks(planned, changed);
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let frontends = changed.frontends.iter();
        let mut servers: BTreeSet<_> = frontends.map(|it| ipvs::ServiceKey::from(*it)).collect();
        servers.extend(&marks.servers);
        for key in &servers {
            if let Some(wanted) = wanted.get(key) {
                self.ledger.end_desired(key, &wanted);
            }
        }
        if let Some(rules) = &mut self.rules {
            let node = planned.snapshot.node();
            rules.filter.follow(wanted, changed, &marks, node);
        }
        self.owners.follow(&servers, wanted, |_| true);
        self.state.pending.virtual_servers.extend(servers);
        let addresses = changed.addresses.iter().copied();
        self.state.pending.addresses.extend(addresses);
        let missing = &mut self.capabilities.missing_schedulers;
        (self.schedulers).ask(&mut self.kernel, planned.desired(), changed, missing, now)
    }

    fn observe(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<bool, Failure> {
        match extent {
            Extent::All => self.read_all(planned, now),
            Extent::Pending => self.read_due(planned, now),
        }
    }

    fn retire(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<BTreeSet<IpAddr>, Failure> {
        let stale = match extent {
            Extent::All => {
                self.recognise(planned, now);
                self.retirable(planned)
            }
            Extent::Pending => {
                let wanted = Wanted::new(planned.desired(), &self.marks);
                let keys = self.state.pending.virtual_servers.iter();
                keys.filter(|key| !wanted.contains(key)).copied().collect()
            }
        };
        self.retire_servers(planned, &stale, now);
        Ok(self.kept_addresses(planned))
    }

    fn changes(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<Changes, Failure> {
        if extent == Extent::All {
            self.end_reading(planned)?;
        }
        Ok(Changes {
            ops: self.compare(planned, extent, now),
            drifted: std::mem::take(&mut self.drifted),
        })
    }

    fn apply(
        &mut self,
        planned: Planned<'_>,
        changes: Changes,
        extent: Extent,
        now: Duration,
    ) -> Applied<Changes> {
        self.apply_round(planned, changes, extent, now)
    }

    fn report(
        &self,
        planned: Planned<'_>,
        applied: &Applied<Changes>,
        each: &mut dyn FnMut(AppliedChange<'_>),
    ) {
        let wanted = Wanted::new(planned.desired(), &self.marks);
        for (op, outcome) in applied.changes.ops.iter().zip(applied.outcomes.iter()) {
            each(AppliedChange {
                kind: changes::kind(&op),
                count: 1,
                line: &NamedOp::new(&op, wanted, self.ledger.owned()),
                reason: applied.changes.reason(&op),
                outcome,
            });
        }
    }

    fn repairs(&self, applied: &Applied<Changes>) -> Option<String> {
        changes::address_repairs(applied)
    }

    fn counts(&self, planned: Planned<'_>) -> Counts {
        Counts {
            frontends: Wanted::new(planned.desired(), &self.marks).len(),
            draining: self.ledger.drains().iter().count(),
        }
    }

    fn destinations(&self, planned: Planned<'_>) -> usize {
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let servers = wanted.iter();
        servers.map(|(_, server)| server.endpoints.len()).sum()
    }

    fn serving(&self, frontend: &Frontend) -> Serving {
        let (key, drains) = (ipvs::ServiceKey::from(*frontend), self.ledger.drains());
        let inside = self.marks.of(frontend);
        let draining = [Some(key), inside]
            .into_iter()
            .flatten()
            .flat_map(|key| drains.of(&key));
        Serving {
            inside,
            draining: draining
                .map(|(it, drain)| ((it.address, it.port).into(), drain.deadline))
                .collect(),
            relayed: None,
        }
    }

    fn has_written_rules(&self) -> bool {
        self.filter().is_none_or(Filter::is_in_step)
    }

    fn answers(&mut self, frontends: &[Frontend]) -> Result<Option<Tally>, Failure> {
        let mut tally = Tally::new();
        for frontend in frontends {
            let keys = [
                Some(ipvs::ServiceKey::from(*frontend)),
                self.marks.of(frontend),
            ];
            for key in keys.iter().flatten() {
                (self.kernel).answers(key, &mut |address, more| {
                    *tally.entry(address).or_default() += more;
                })?;
            }
        }
        Ok(Some(tally))
    }

    fn next_due(&self) -> Option<Duration> {
        let timers = [
            self.retries.next_due(),
            self.ledger.next_due(),
            self.rules.as_ref().and_then(|rules| rules.retry.due()),
            self.flows.next_due(),
            self.schedulers.next_due(),
            self.state.follow_up.due(),
        ];
        timers.into_iter().flatten().min()
    }

    fn problems_of_node(&self, planned: Planned<'_>) -> Vec<Problem> {
        let contested = state::contested(&self.state.observed, planned.desired());
        let wanted = Wanted::new(planned.desired(), &self.marks);
        let of_rules = self.filter().map(|filter| filter.problems(wanted));
        let of_rules = of_rules.into_iter().flatten();
        let servers = self.doubtful();
        (of_rules.chain(contested).chain(servers)).collect()
    }

    /// Returns the refusals of the kernel, if they concern the whole node: the packet rules, more than half of the
    /// planned virtual servers and addresses, or each service address of a family of which the node has addresses itself.
    ///
    /// A few refused objects are the fault of their Services and do not make the node unhealthy: every node refuses
    /// them, so one bad Service would take all nodes out of their load balancers.
    fn refusal(&self, planned: Planned<'_>) -> Option<String> {
        let rules = self.rules.as_ref();
        // The retry timer runs exactly while the last write of rules failed.
        if rules.is_some_and(|rules| rules.retry.due().is_some()) {
            return Some("the kernel refuses the packet rules".to_owned());
        }
        let desired = planned.desired();
        let addresses = &planned.machine.addresses;
        let wanted = Wanted::new(desired, &self.marks);
        let planned = wanted.len() + desired.addresses.len();
        // Without the carrier no address can be added, so it need not count too.
        let refused = self.retries.targets().filter(|it| **it != Target::Carrier);
        let refused = refused.count();
        if refused * 2 > planned {
            return Some(format!(
                "the kernel refuses {refused} of {planned} virtual servers and addresses"
            ));
        }
        let mut families = [(Family::V4, "IPv4"), (Family::V6, "IPv6")].into_iter();
        families.find_map(|(family, name)| {
            let is_of_family = |it: &&IpAddr| Family::from(**it) == family;
            let refused = self.retries.targets().filter_map(Target::address);
            let refused = refused.filter(|it| desired.addresses.contains_key(it));
            let refused = refused.filter(|it| is_of_family(&it)).count();
            let is_whole = refused > 0
                && refused == desired.addresses.keys().filter(is_of_family).count()
                && addresses.iter().any(|it| is_of_family(&it));
            is_whole
                .then(|| format!("the kernel refuses all {refused} service addresses of {name}"))
        })
    }

    fn distrust_rules(&mut self) {
        if let Some(rules) = &mut self.rules {
            rules.filter.distrust();
        }
    }

    fn distrust_addresses(&mut self) {
        self.state.knows_addresses = false;
        self.state.suspects_drift = true;
    }

    /// Compares the generation of the packet rules with that of our last write.
    fn finds_changed_rules(&mut self) -> bool {
        let Some(rules) = &mut self.rules else {
            return false;
        };
        if !rules.filter.is_in_step() {
            return false;
        }
        let recorded = rules.recorded(&mut self.kernel, &self.ledger);
        let are_changed = !matches!(recorded, Ok(Some(_)));
        if are_changed {
            rules.filter.distrust();
        }
        are_changed
    }
}
