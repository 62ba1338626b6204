//! Explains, Service by Service, what `run` would change on a node where another proxy still serves.
//!
//! ```text
//! Ops of a round ─▶ Difference: change, cause ─▶ Finding: the rule that the present table breaks
//! ```
//!
//! The differences explain a round that was not made. The findings are the differences in which the present
//! table breaks the documentation of Kubernetes; a choice of the operator or of this program is none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs_netlink as ipvs;
use serde::Serialize;

use crate::cluster::model::{ObjectName, Protocol};
use crate::cluster::store::Snapshot;
use crate::dataplane::ipvs::Wanted;
use crate::dataplane::ipvs::ledger::Retired;
use crate::dataplane::ipvs::observed::Observed;
use crate::dataplane::ipvs::op::Op;
use crate::plan::frontend::Frontend;
use crate::plan::{Desired, Planner};

mod audit;
mod cause;
mod change;
mod endpoint;
mod nftables_mode;
mod rule;
mod server;

pub(crate) use audit::Finding;
use cause::ChangeCause;
use change::{Change, ChangeKind};
use rule::DocumentedRule;

/// The values that a comparison refers to.
#[derive(Clone, Copy, Debug)]
pub struct Compared<'a> {
    /// The API objects.
    pub snapshot: &'a Snapshot,
    /// The plan.
    pub planner: &'a Planner,
    /// The plan in the terms of IPVS.
    pub wanted: Wanted<'a>,
    /// The present state of the kernel.
    pub observed: &'a Observed,
    /// The virtual servers that exist for open connections only.
    pub retired: &'a Retired,
}

impl Compared<'_> {
    fn desired(&self) -> &Desired {
        self.planner.desired()
    }
}

/// The object that a difference affects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Affected {
    /// A Service.
    Service(ObjectName),
    /// A virtual server in the cluster's service ranges that no Service requests.
    NoService,
    /// The node: devices, addresses in general, packet rules.
    Node,
}

/// A change of the kernel and its cause; prints as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) subject: Affected,
    /// The virtual servers with the same change for the same reason; empty for addresses and the node.
    pub(crate) frontends: Vec<ipvs::ServiceKey>,
    pub(crate) change: Change,
    pub(crate) cause: ChangeCause,
}

/// The present state of the kernel, compared with the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The changes of the round, sorted by subject. Frontends and destinations with the same change for
    /// the same reason share one difference.
    pub(crate) differences: Vec<Difference>,
    /// The parts of the present state that break a rule, sorted by subject and rule.
    pub(crate) findings: Vec<Finding>,
    pub(crate) summary: Summary,
}

impl Comparison {
    /// Explains the Ops of a round that was not made.
    pub fn new(ops: &[Op], view: &Compared<'_>) -> Self {
        let mut collected = Collected::default();
        for op in ops {
            collected.add(op, view);
        }
        let differences = collected.merge();
        Self {
            findings: audit::findings(&differences, view),
            differences,
            summary: Summary::of(ops, view),
        }
    }

    /// Adds the difference of packet rules that the round would write.
    #[must_use]
    pub fn writing_rules(mut self, view: &Compared<'_>) -> Self {
        let cause = match has_foreign_carrier(view.observed) {
            true => ChangeCause::RulesBesideOthers,
            false => ChangeCause::Rules,
        };
        self.differences.push(Difference {
            subject: Affected::Node,
            frontends: Vec::new(),
            change: Change::WriteRules,
            cause,
        });
        self
    }

    /// Returns whether the round would change anything.
    pub fn has_changes(&self) -> bool {
        !self.differences.is_empty()
    }

    /// Returns whether the present state breaks a rule.
    pub fn has_findings(&self) -> bool {
        !self.findings.is_empty()
    }
}

/// Returns whether another program, usually kube-proxy, created the device `kube-ipvs0`.
fn has_foreign_carrier(observed: &Observed) -> bool {
    observed.carrier.is_some_and(|carrier| !carrier.is_ours)
}

/// The causes and changes of virtual servers and addresses.
#[derive(Default)]
struct Collected {
    /// The change by virtual server and reason. [`Change::absorb`] adds the destinations of later Ops.
    servers: BTreeMap<(Affected, ipvs::ServiceKey, ChangeCause, ChangeKind), Change>,
    addresses: BTreeMap<(Affected, ChangeCause, ChangeKind), Change>,
}

impl Collected {
    fn add(&mut self, op: &Op, view: &Compared<'_>) {
        let Some(key) = op.service_key() else {
            let (cause, change) = address_change(op, view);
            let subject = match (cause.is_of_service(), op.address()) {
                (true, Some(address)) => user_of(address, view.desired()),
                _ => Affected::Node,
            };
            let known = self.addresses.entry((subject, cause, change.kind()));
            known
                .and_modify(|known| known.absorb(&change))
                .or_insert(change);
            return;
        };
        let server = view.wanted.get(&key);
        let subject = server.map_or(Affected::NoService, |server| {
            Affected::Service(server.owner().service.clone())
        });
        for (cause, change) in server::changes(op, &key, view) {
            let reason = (subject.clone(), key, cause, change.kind());
            let known = self.servers.entry(reason);
            known
                .and_modify(|known| known.absorb(&change))
                .or_insert(change);
        }
    }

    /// Joins the frontends with the same change for the same reason.
    fn merge(self) -> Vec<Difference> {
        let mut merged: BTreeMap<(Affected, ChangeCause, Change), Vec<ipvs::ServiceKey>> =
            BTreeMap::new();
        for ((subject, key, cause, _), change) in self.servers {
            let same = merged.entry((subject, cause, change)).or_default();
            same.push(key);
        }
        for ((subject, cause, _), change) in self.addresses {
            merged.entry((subject, cause, change)).or_default();
        }
        let merged = merged.into_iter();
        merged
            .map(|((subject, cause, change), frontends)| Difference {
                subject,
                frontends,
                change,
                cause,
            })
            .collect()
    }
}

/// Returns a Service that uses `address`.
fn user_of(address: IpAddr, desired: &Desired) -> Affected {
    let frontend = |protocol, port| Frontend {
        address,
        protocol,
        port,
    };
    let (first, last) = (
        frontend(Protocol::Tcp, 0),
        frontend(Protocol::Sctp, u16::MAX),
    );
    // Several Services may share an external IP. One is enough to say who needs the address.
    let mut users = desired.frontends.range(first..=last);
    users.next().map_or(Affected::Node, |(_, plan)| {
        Affected::Service(plan.owner.service.clone())
    })
}

/// Returns the change of an Op on addresses or the device, and its cause.
fn address_change(op: &Op, view: &Compared<'_>) -> (ChangeCause, Change) {
    match *op {
        Op::AddAddress(address, _) => {
            let cause = match view.observed.leftovers_of(address).next() {
                Some(_) => ChangeCause::AddressForm,
                None => ChangeCause::AddressMissing,
            };
            (cause, Change::AddAddresses(vec![address]))
        }
        Op::SetAddress(address, _) => {
            let cause = match view.observed.outdated.contains(&address) {
                true => ChangeCause::Mtu,
                false => ChangeCause::Source,
            };
            (cause, Change::SetAddresses(vec![address]))
        }
        Op::DeleteAddress(address) => (
            ChangeCause::AddressUnused,
            Change::DeleteAddresses(vec![address]),
        ),
        Op::DeleteLeftover(address, _) => {
            let cause = match view.desired().addresses.contains_key(&address) {
                true => ChangeCause::AddressForm,
                false => ChangeCause::AddressUnused,
            };
            (cause, Change::DeleteAddresses(vec![address]))
        }
        Op::AddCarrier => (ChangeCause::CarrierMissing, Change::AddDevice),
        Op::DeleteCarrier => (ChangeCause::CarrierUnused, Change::DeleteDevice),
        // The remaining Ops have a virtual server.
        _ => (ChangeCause::CarrierDown, Change::SetDevice),
    }
}

/// The numbers of virtual servers that a round would add, change, delete or leave alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    /// Virtual servers that do not change.
    pub(crate) same: usize,
    /// Virtual servers that change.
    pub(crate) changed: usize,
    /// Virtual servers that the kernel lacks.
    pub(crate) added: usize,
    /// Virtual servers that would be deleted.
    pub(crate) deleted: usize,
    /// Foreign virtual servers, which no Service requests and no round changes.
    pub(crate) foreign: usize,
}

impl Summary {
    /// Counts the virtual servers of the plan and of the kernel.
    pub(crate) fn of(ops: &[Op], view: &Compared<'_>) -> Self {
        let wanted = view.wanted;
        let observed = &view.observed.virtual_servers;
        let touched: BTreeSet<_> = ops.iter().filter_map(Op::service_key).collect();
        let mut summary = Self::default();
        for key in wanted.keys() {
            match (observed.contains_key(&key), touched.contains(&key)) {
                (false, _) => summary.added += 1,
                (true, true) => summary.changed += 1,
                (true, false) => summary.same += 1,
            }
        }
        for key in observed.keys().filter(|key| !wanted.contains(key)) {
            match (touched.contains(&key), view.retired.contains(&key)) {
                (true, _) => summary.deleted += 1,
                (false, false) => summary.foreign += 1,
                // Retired: it is deleted when its connections have ended, by a later round.
                (false, true) => {}
            }
        }
        summary
    }
}
