//! What the kernel has, as far as known.

use crate::observed::Observed;
use crate::plan::{Changed, Desired};

/// The observed state of the kernel, and where the plan may differ from it.
#[derive(Debug, Default)]
pub(super) struct KernelState {
    /// What was read or written last.
    pub(super) observed: Observed,
    /// Whether `observed` can be trusted: it was read once, and no answer was lost since.
    pub(super) is_known: bool,
    /// What to compare in the next round.
    pub(super) pending: Changed,
}

impl KernelState {
    /// Takes the state out before a resync, as the expectation to find drift by; `None` if it
    /// cannot be trusted.
    pub(super) fn expected(&mut self) -> Option<Observed> {
        let is_known = std::mem::take(&mut self.is_known);
        is_known.then(|| std::mem::take(&mut self.observed))
    }

    /// Shares the destinations of a virtual server with the plan, where they are equal.
    pub(super) fn share(&mut self, key: &ipvs_netlink::ServiceKey, desired: &Desired) {
        let wanted = desired.virtual_servers.get(key);
        let observed = self.observed.virtual_servers.get_mut(key);
        if let (Some(wanted), Some(observed)) = (wanted, observed) {
            observed.destinations.share(&wanted.destinations);
        }
    }
}

/// Returns the virtual servers of the plan and the service addresses that differ from `expected`:
/// another program changed them.
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
