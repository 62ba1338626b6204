//! The machine: observed as a whole, changed by [`Op`]s only.
//!
//! [`linux`] is a real kernel, [`fake`] one in memory. One conformance suite
//! (`tests/conformance.rs`) runs against both, so that what is proved on the fake holds.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipvs_netlink as ipvs;
use rustix::io::Errno;

use crate::conntrack::{Stale, Swept};
use crate::nftables;
use crate::observed::{Found, Observed};
use crate::op::Op;
use crate::plan::{Desired, Machine};
use crate::rules::Surplus;

pub mod fake;
pub mod linux;

/// Something that Ops can be applied to.
pub trait Dataplane {
    /// Reads the machine's own addresses.
    ///
    /// # Errors
    /// When they cannot be read; nothing is known then.
    fn machine(&mut self) -> Result<Machine, Failure>;

    /// Shows every virtual server of the network namespace to `each`, ours or not, each once and in
    /// no particular order. Keeps none of them: there may be very many.
    ///
    /// # Errors
    /// When any part cannot be read whole.
    fn virtual_servers(&mut self, each: &mut dyn FnMut(Found)) -> Result<(), Failure>;

    /// Reads one virtual server; `None` when it does not exist.
    ///
    /// # Errors
    /// When it cannot be read whole.
    fn virtual_server(&mut self, key: &ipvs::ServiceKey) -> Result<Option<Found>, Failure>;

    /// Reads the addresses that we made local, with their preferred source.
    ///
    /// # Errors
    /// When they cannot be read whole.
    fn addresses(&mut self) -> Result<BTreeMap<IpAddr, Option<IpAddr>>, Failure>;

    /// Reads everything that [`crate::diff`] compares; destinations that are as in `desired` are
    /// shared with it.
    ///
    /// # Errors
    /// When any part cannot be read whole.
    fn observe(&mut self, desired: &Desired) -> Result<Observed, Failure> {
        // Collected, a map has no half-empty nodes.
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

    /// The number of the present state of all packet rules, whoever's; every change changes it.
    /// `None` when there are none of ours.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn rules_generation(&mut self) -> Result<Option<u32>, Failure>;

    /// Changes our packet rules in one moment: all of `changes` or none. `table` is what comes out, but
    /// for a `surplus` that stays.
    /// Answers the number of the state then, where it is known.
    ///
    /// # Errors
    /// When the kernel refuses; what it has then need not be what it had.
    fn change_rules(
        &mut self,
        table: &nftables::Table,
        changes: &[nftables::Command],
        surplus: &Surplus,
    ) -> Result<Option<u32>, Failure>;

    /// Makes `table` our packet rules, whatever they were, but for a `surplus` that stays, and touches
    /// only what differs; answers as [`Dataplane::change_rules`].
    ///
    /// # Errors
    /// When the kernel refuses.
    fn replace_rules(
        &mut self,
        table: &nftables::Table,
        surplus: &Surplus,
    ) -> Result<Option<u32>, Failure>;

    /// Deletes our packet rules, if there are any.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn delete_rules(&mut self) -> Result<(), Failure>;

    /// Deletes the flows that are stale from connection tracking, and no others.
    ///
    /// # Errors
    /// When the kernel refuses; some are deleted then.
    fn sweep_flows(&mut self, stale: &Stale) -> Result<Swept, Failure>;

    /// Applies `ops` in order and says of each whether it took effect.
    ///
    /// A failing Op does not stop the following ones. The answer has the length of `ops`.
    fn apply(&mut self, ops: &[Op]) -> Vec<Outcome>;
}

/// What became of an [`Op`]; a pointer wide, since there may be very many.
pub type Outcome = Result<(), Box<Failure>>;

/// Why the machine refused something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kernel's error number; `None` when it gave no answer, and what was asked may or may not
    /// have taken effect.
    pub errno: Option<Errno>,
    /// What was being done and what happened, as one line.
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

    /// Whether the kernel lacks the scheduler, given that a virtual server was to be created or
    /// changed (`ip_vs_add_service`, `ip_vs_edit_service`).
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
