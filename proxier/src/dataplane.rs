//! The kernel behind a trait: observed as a whole, changed by [`Op`]s and packet rules only.
//!
//! [`linux`] is a real kernel, [`fake`] one in memory. One conformance suite
//! (`tests/conformance.rs`) runs on both, so that proofs on the fake hold for the real one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;
use rustix::io::Errno;

use crate::conntrack::{Stale, Swept};
use crate::nftables;
use crate::observed::{CountedServer, Observed};
use crate::op::Op;
use crate::plan::{Desired, Machine};

pub mod fake;
pub mod linux;

/// A kernel that Ops can be applied to.
pub trait Dataplane {
    /// Reads the machine's own addresses.
    ///
    /// # Errors
    /// When they cannot be read.
    fn machine(&mut self) -> Result<Machine, Failure>;

    /// Calls `each` for every virtual server of the network namespace, owned or foreign, once and in
    /// no particular order. Memory does not grow with their number.
    ///
    /// # Errors
    /// When any part cannot be read whole.
    fn virtual_servers(&mut self, each: &mut dyn FnMut(CountedServer)) -> Result<(), Failure>;

    /// Reads one virtual server; `None` if it does not exist.
    ///
    /// # Errors
    /// When it cannot be read whole.
    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<CountedServer>, Failure>;

    /// Reads our service addresses, each with its preferred source.
    ///
    /// # Errors
    /// When they cannot be read whole.
    fn addresses(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure>;

    /// Reads everything that [`crate::diff`] compares; destinations that equal the desired ones share
    /// their memory.
    ///
    /// # Errors
    /// When any part cannot be read whole.
    fn observe(&mut self, desired: &Desired) -> Result<Observed, Failure> {
        // A map that is collected has full nodes; insertions in order would leave half of each empty.
        let mut servers = Vec::new();
        self.virtual_servers(&mut |found| {
            let mut server = found.server;
            let key = server.service.key;
            if let Some(wanted) = desired.virtual_servers.get(&key) {
                server.destinations.share(&wanted.destinations);
            }
            servers.push((key, server));
        })?;
        Ok(Observed {
            virtual_servers: servers.into_iter().collect(),
            addresses: self.addresses()?,
        })
    }

    /// Returns the number of the present state of all packet rules in the namespace: every change by
    /// any program changes it. `None` if our table does not exist.
    ///
    /// # Errors
    /// When it cannot be read.
    fn rules_generation(&mut self) -> Result<Option<u32>, Failure>;

    /// Applies all of `commands` to our packet rules, or none, in one transaction that leads to `table`.
    /// Returns the number of the state after it, if known.
    ///
    /// # Errors
    /// When the kernel refuses; its rules may then differ from those before.
    fn change_rules(
        &mut self,
        table: &nftables::Table,
        commands: &[nftables::Command],
    ) -> Result<Option<u32>, Failure>;

    /// Makes `table` our packet rules, whatever they were, and changes only what differs. Returns as
    /// [`Dataplane::change_rules`].
    ///
    /// # Errors
    /// When the kernel refuses.
    fn replace_rules(&mut self, table: &nftables::Table) -> Result<Option<u32>, Failure>;

    /// Deletes our packet rules, if they exist.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn delete_rules(&mut self) -> Result<(), Failure>;

    /// Deletes exactly the stale flows from connection tracking.
    ///
    /// # Errors
    /// When the kernel refuses; some may be deleted then.
    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure>;

    /// Applies `ops` in order and returns the outcome of each.
    ///
    /// A failing Op does not stop the following ones.
    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome>;
}

/// The outcome of an [`Op`]; a pointer wide, since a round may have 100,000 of them.
pub type Outcome = Result<(), Box<Failure>>;

/// Why the kernel refused something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kernel's error number; `None` if its answer is lost, and the request may or may not have
    /// taken effect.
    pub errno: Option<Errno>,
    /// What was being done, and what happened, as one line.
    pub message: String,
}

impl Failure {
    /// A failure with the kernel's error number.
    pub fn kernel(errno: Errno, doing: impl fmt::Display) -> Self {
        let words = std::io::Error::from(errno).to_string();
        Self {
            errno: Some(errno),
            message: format!("{doing}: {words}"),
        }
    }

    /// Whether the kernel lacks the scheduler, if the request was to create or change a virtual server
    /// (`ip_vs_add_service`, `ip_vs_edit_service`).
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
