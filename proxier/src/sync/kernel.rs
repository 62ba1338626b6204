//! The kernel's state as far as known, and drift.

use crate::observed::Observed;
use crate::plan::{Changed, Desired};

/// The observed state of the kernel, and the parts of it that may differ from the plan.
#[derive(Debug, Default)]
pub(super) struct KernelState {
    /// The state as last read or written.
    pub(super) observed: Observed,
    /// Whether `observed` can be trusted: it was read, and since then no answer was lost.
    pub(super) is_known: bool,
    /// The virtual servers and addresses that the next round compares.
    pub(super) pending: Changed,
}

impl KernelState {
    /// Takes the observed state, so that a resync can find drift from it; `None` if it is unknown.
    ///
    /// The state is unknown from then on, until the resync has read it.
    pub(super) fn expected(&mut self) -> Option<Observed> {
        let is_known = std::mem::take(&mut self.is_known);
        is_known.then(|| std::mem::take(&mut self.observed))
    }

    /// Shares the memory of a virtual server's destinations with the plan if they are equal.
    pub(super) fn share(&mut self, key: &ipvs_netlink::ServiceKey, desired: &Desired) {
        let wanted = desired.virtual_servers.get(key);
        let observed = self.observed.virtual_servers.get_mut(key);
        if let (Some(wanted), Some(observed)) = (wanted, observed) {
            observed.destinations.share(&wanted.destinations);
        }
    }
}

/// Returns the drift: desired virtual servers and service addresses in which `found` differs from
/// `expected`.
///
/// Other virtual servers are not compared: they are foreign, or this round deletes them.
pub(super) fn drift(expected: &Observed, found: &Observed, desired: &Desired) -> Changed {
    let is_changed = |key: &&ipvs_netlink::ServiceKey| {
        expected.virtual_servers.get(*key) != found.virtual_servers.get(*key)
    };
    let keys = desired.virtual_servers.keys();
    let addresses = expected.addresses.keys().chain(found.addresses.keys());
    Changed {
        virtual_servers: keys.filter(is_changed).copied().collect(),
        addresses: addresses
            .filter(|address| expected.addresses.get(*address) != found.addresses.get(*address))
            .copied()
            .collect(),
        ..Changed::default()
    }
}
