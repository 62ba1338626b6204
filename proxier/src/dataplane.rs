//! What serves the plan, behind a trait.
//!
//! * [`ipvs`]: IPVS, routes and packet rules. Its [`ipvs::Kernel`] is a real kernel ([`ipvs::linux`]) or one in memory
//!   (`fake`, for tests).
//! * [`nftables`]: rules for the plan without IPVS.
//! * [`userspace`]: a relay in this process.
//! * [`beside`]: one of the others, with a relay for what the kernel cannot serve.
//!
//! The first two build their rules from the same pieces (`packet_rules`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::cluster::model::ObjectName;
use crate::cluster::problem::Problem;
use crate::cluster::store::{Snapshot, Touched};
use crate::plan::frontend::Frontend;
use crate::plan::{Answers, Capabilities, Changed, Desired, Machine, Peers, PlanConfig, Planner};

pub(crate) mod answer_path;
mod applied;
pub(crate) mod beside;
pub(crate) mod conntrack;
pub(crate) mod ipvs;
pub(crate) mod namespace_lock;
pub(crate) mod nftables;
mod packet_rules;
pub(crate) mod retry;
mod serving;
pub(crate) mod userspace;

pub use applied::{Applied, AppliedChange, Outcomes, Reason};
pub(crate) use packet_rules::LocalClients;
pub use serving::Serving;

/// The plan, and what it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The API objects.
    pub snapshot: &'a Snapshot,
    /// This machine.
    pub machine: &'a Machine,
    /// The planner, with the plan.
    pub planner: &'a Planner,
}

impl<'a> Planned<'a> {
    /// Returns the plan.
    pub fn desired(self) -> &'a Desired {
        self.planner.desired()
    }

    /// Returns the choices of the operator.
    pub fn config(self) -> &'a PlanConfig {
        self.planner.config()
    }

    /// Returns the addresses of the machine at which an earlier process `served` node ports, while our Node is unknown.
    ///
    /// That process knew the Node. If the planner did not get these addresses, `--nodeport-addresses primary` would
    /// delete all node ports until the Node is known again.
    fn earlier_node_ports(self, served: impl Iterator<Item = (IpAddr, u16)>) -> BTreeSet<IpAddr> {
        if self.snapshot.node().is_some() {
            return BTreeSet::new();
        }
        let at_machine = served.filter(|(address, _)| self.machine.addresses.contains(address));
        let mut serving: Vec<(IpAddr, u16)> = at_machine.collect();
        // A look at all Services costs time, and most nodes need it only once.
        if serving.is_empty() {
            return BTreeSet::new();
        }
        let ports = (self.snapshot.services()).flat_map(|service| &*service.ports);
        let node_ports: BTreeSet<u16> = ports.filter_map(|port| port.node_port).collect();
        serving.retain(|(_, port)| node_ports.contains(port));
        serving.into_iter().map(|(address, _)| address).collect()
    }

    /// Returns the addresses that are served before all others: the cluster IPs of the API server, through which
    /// processes of this node, perhaps this one too, reach it.
    pub(crate) fn first_addresses(self) -> BTreeSet<IpAddr> {
        let api_server = ObjectName::new("default", "kubernetes");
        let service = self.snapshot.service(&api_server).into_iter();
        service
            .flat_map(|service| &service.cluster_ips)
            .copied()
            .collect()
    }
}

/// What endpoints got and gave, by address.
pub(crate) type Tally = BTreeMap<IpAddr, Answers>;

/// How much a round compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The frontends that events touched, and what has due work.
    Pending,
    /// Everything, after reading the kernel back.
    All,
}

/// What serves the plan. A round calls `begin`, `follow`, `observe`, `follow`, `retire`, `changes` and `apply`, in
/// this order.
///
/// By default, it has neither packet rules nor Problems. Where a dataplane cannot serve a part of the plan, it changes its
/// [`Capabilities`], and the planner plans again.
pub trait Dataplane {
    /// The changes of a round, in the order in which they are applied.
    type Changes;

    /// Reads the machine's own addresses.
    ///
    /// # Errors
    /// If they cannot be read.
    fn machine(&mut self) -> Result<Machine, Failure>;

    /// Reads the addresses of other machines with which this one speaks.
    ///
    /// # Errors
    /// If they cannot be read.
    fn peers(&mut self) -> Result<Peers, Failure>;

    /// Returns what this dataplane can do. The planner respects it.
    fn capabilities(&self) -> &Capabilities;

    /// Returns whether the observed state can be trusted, so that a round of extent `Pending` is possible.
    fn is_known(&self) -> bool;

    /// Returns whether the kernel serves with anything of ours, perhaps of an earlier process.
    ///
    /// # Errors
    /// If it cannot be read.
    fn has_own_state(&mut self, planned: Planned<'_>) -> Result<bool, Failure>;

    /// Begins a round, before planning. `touched` are the Services that events touched.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn begin(
        &mut self,
        planned: Planned<'_>,
        touched: &Touched,
        extent: Extent,
        now: Duration,
    ) -> Result<(), Failure>;

    /// Follows a change of the plan. Returns whether the capabilities changed, so that the plan must be made again.
    fn follow(&mut self, planned: Planned<'_>, changed: &Changed, now: Duration) -> bool;

    /// Reads the kernel: all of it, or what is due. Returns whether the capabilities changed.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn observe(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<bool, Failure>;

    /// Begins what leaves the plan gradually, such as drains. Returns the service addresses that stay local because of
    /// it.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn retire(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<BTreeSet<IpAddr>, Failure>;

    /// Returns the changes from the observed state to the plan.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn changes(
        &mut self,
        planned: Planned<'_>,
        extent: Extent,
        now: Duration,
    ) -> Result<Self::Changes, Failure>;

    /// Applies the changes. A failed one is tried again by a later round.
    fn apply(
        &mut self,
        planned: Planned<'_>,
        changes: Self::Changes,
        extent: Extent,
        now: Duration,
    ) -> Applied<Self::Changes>;

    /// Calls `each` for every change of a round, in order, or once for many of a kind ([`AppliedChange::count`]).
    fn report(
        &self,
        planned: Planned<'_>,
        applied: &Applied<Self::Changes>,
        each: &mut dyn FnMut(AppliedChange<'_>),
    );

    /// Returns one line about the repairs of a round of which there may be thousands; `None` without any.
    fn repairs(&self, applied: &Applied<Self::Changes>) -> Option<String>;

    /// Returns the size of what is programmed.
    fn counts(&self, planned: Planned<'_>) -> Counts;

    /// Returns the number of planned endpoints, each counted once per frontend.
    ///
    /// # Cost
    /// A walk over the plan.
    fn destinations(&self, planned: Planned<'_>) -> usize;

    /// Returns what it knows of a frontend beside the plan.
    fn serving(&self, frontend: &Frontend) -> Serving;

    /// Returns whether the kernel has our packet rules as planned. Without them, what another program left may still
    /// serve the node.
    fn has_written_rules(&self) -> bool {
        true
    }

    /// Reads what the endpoints of these frontends got and gave, in total, by address; `None` if nothing counts it.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    fn answers(&mut self, frontends: &[Frontend]) -> Result<Option<Tally>, Failure> {
        let _ = frontends;
        Ok(None)
    }

    /// Returns when a round has work even without an event, in time since boot.
    fn next_due(&self) -> Option<Duration>;

    /// Returns the Problems of this node, which are few.
    fn problems_of_node(&self, _: Planned<'_>) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns the parts of the plan that this dataplane leaves out, and why.
    fn problems(&self, _: Planned<'_>) -> Vec<Problem> {
        Vec::new()
    }

    /// Returns a number that increases when [`Dataplane::problems`] may have changed.
    fn problems_revision(&self) -> u64 {
        0
    }

    /// Returns why the kernel refuses so much that the whole node is unhealthy.
    fn refusal(&self, planned: Planned<'_>) -> Option<String>;

    /// Notes that another program changed our packet rules, so that the next round repairs them.
    fn distrust_rules(&mut self) {}

    /// Notes that another program changed service addresses or their device, so that the next round repairs them.
    fn distrust_addresses(&mut self) {}

    /// Returns whether another program changed our packet rules since our last write; then the next round repairs them.
    fn finds_changed_rules(&mut self) -> bool {
        false
    }
}

/// The size of what a dataplane has programmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frontends, or virtual servers.
    pub frontends: usize,
    /// Endpoints that were removed and keep their connections for now.
    pub draining: usize,
}

/// The outcome of a change.
///
/// The failure is boxed, because a round may have 100,000 outcomes and nearly all are `Ok`.
pub type Outcome = Result<(), Box<Failure>>;

/// The failure of a request to the kernel, or to the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kernel's error number; `None` if its answer is lost, so that the request may have taken
    /// effect.
    pub errno: Option<Errno>,
    /// The request and its error, as one line.
    pub message: String,
}

impl Failure {
    /// Returns a failure with the kernel's error number.
    pub fn kernel(errno: Errno, doing: impl fmt::Display) -> Self {
        let error = std::io::Error::from(errno);
        Self {
            errno: Some(errno),
            message: format!("{doing}: {error}"),
        }
    }

    /// Returns the failure to open a socket for netfilter; names the module if that is missing.
    pub(crate) fn netfilter_socket(error: netlink::Error) -> Self {
        // `netlink_create` (Linux 6.1), if no module registered the protocol.
        let is_missing = error.errno() == Some(Errno::PROTONOSUPPORT);
        let mut failure = Self::from(error);
        if is_missing {
            let hint = "the kernel has no nfnetlink and could not load the module nfnetlink (kernel option \
                        CONFIG_NETFILTER_NETLINK)";
            failure.message = format!("{hint}: {}", failure.message);
        }
        failure
    }

    /// Returns whether the kernel lacks the scheduler of a virtual server.
    ///
    /// Only valid for Ops that add or set a virtual server; other requests fail with the same error
    /// number for other reasons.
    pub fn is_scheduler_missing(&self) -> bool {
        self.errno == Some(Errno::NOENT)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<::nftables::TransactionError> for Failure {
    fn from(error: ::nftables::TransactionError) -> Self {
        let errno = match &error {
            ::nftables::TransactionError::Refused { refusal, .. } => Some(refusal.errno),
            ::nftables::TransactionError::NoNfTables => Some(Errno::OPNOTSUPP),
            _ => None,
        };
        Self {
            errno,
            message: format!("packet rules: {error}"),
        }
    }
}

impl From<netlink::Error> for Failure {
    fn from(error: netlink::Error) -> Self {
        let errno = match &error {
            netlink::Error::Refused { refusal, .. } => Some(refusal.errno),
            // All other errors are the socket's. `None` tells the caller that the request may have taken
            // effect.
            _ => None,
        };
        let hint = match error.is_permission_denied() {
            true => "; this needs CAP_NET_ADMIN in the initial user namespace",
            false => "",
        };
        Self {
            errno,
            message: format!("{error}{hint}"),
        }
    }
}
