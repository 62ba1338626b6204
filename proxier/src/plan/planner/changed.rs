//! The changes of an update: the touched parts of the plan before it, compared with those after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Footprint;
use crate::frontend::Frontend;
use crate::plan::health::HealthCheck;
use crate::plan::{Desired, FrontendPlan};

/// The changes of the plan by an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Added, removed and changed frontends.
    pub frontends: BTreeSet<Frontend>,
    /// Added and removed addresses, and those with a changed source.
    pub addresses: BTreeSet<IpAddr>,
    /// Added and removed addresses of local endpoints.
    pub local_endpoints: BTreeSet<IpAddr>,
    /// Ports of added, removed and changed health checks.
    pub health_checks: BTreeSet<u16>,
}

impl Changed {
    /// Returns the changes from the plan `before` to `after`.
    ///
    /// Puts back the old value of an unchanged frontend, because others share its memory.
    pub(super) fn between(before: Desired, after: &mut Desired) -> Self {
        let endpoints = before.local_endpoints;
        let endpoints = endpoints.symmetric_difference(&after.local_endpoints);
        let (checks, checks_now) = (&before.health_checks, &after.health_checks);
        let ports = checks.keys().chain(checks_now.keys());
        let ports = ports.filter(|port| checks.get(port) != checks_now.get(port));
        Self {
            local_endpoints: endpoints.copied().collect(),
            health_checks: ports.copied().collect(),
            frontends: differences(before.frontends, &mut after.frontends),
            addresses: differences(before.addresses, &mut after.addresses),
        }
    }

    /// Adds the changes of `other`.
    pub fn extend(&mut self, other: Self) {
        self.frontends.extend(other.frontends);
        self.addresses.extend(other.addresses);
        self.local_endpoints.extend(other.local_endpoints);
        self.health_checks.extend(other.health_checks);
    }
}

/// Returns the keys of which `before` and `after` have different values. Puts back equal old values.
fn differences<K: Ord + Copy, V: PartialEq>(
    before: BTreeMap<K, V>,
    after: &mut BTreeMap<K, V>,
) -> BTreeSet<K> {
    let new = after.keys().filter(|key| !before.contains_key(key));
    let mut keys: BTreeSet<K> = new.copied().collect();
    for (key, old) in before {
        match after.get_mut(&key) {
            Some(now) if *now == old => *now = old,
            _ => _ = keys.insert(key),
        }
    }
    keys
}

/// The touched parts of the plan before an update; `None` if the plan did not have them.
///
/// Only the first value of a key is recorded (`or_insert`), because later values are intermediate states
/// of the same update.
#[derive(Default)]
pub(super) struct Previous {
    pub(super) frontends: BTreeMap<Frontend, Option<FrontendPlan>>,
    addresses: BTreeMap<IpAddr, Option<LocalAddress>>,
    local_endpoints: BTreeMap<IpAddr, bool>,
    pub(super) health_checks: BTreeMap<u16, Option<HealthCheck>>,
}

/// A planned address. A type of its own, because `Option<Option<IpAddr>>` would hide the difference between
/// an address without a source and no address.
#[derive(PartialEq, Eq)]
struct LocalAddress {
    source: Option<IpAddr>,
}

impl LocalAddress {
    fn new(source: Option<IpAddr>) -> Self {
        Self { source }
    }
}

impl Previous {
    /// Notes the parts of the plan that a Service with this footprint touches.
    pub(super) fn note(&mut self, desired: &Desired, footprint: &Footprint) {
        for &frontend in &footprint.frontends {
            let before = || desired.frontends.get(&frontend).cloned();
            self.frontends.entry(frontend).or_insert_with(before);
        }
        self.note_addresses(desired, footprint.addresses.iter().copied());
        for &address in &footprint.local_endpoints {
            let before = || desired.local_endpoints.contains(&address);
            self.local_endpoints.entry(address).or_insert_with(before);
        }
        if let Some(port) = footprint.health_port {
            let before = || desired.health_checks.get(&port).cloned();
            self.health_checks.entry(port).or_insert_with(before);
        }
    }

    /// Notes local addresses.
    pub(super) fn note_addresses(
        &mut self,
        desired: &Desired,
        addresses: impl Iterator<Item = IpAddr>,
    ) {
        for address in addresses {
            let before = || desired.addresses.get(&address).copied();
            let before = || before().map(LocalAddress::new);
            self.addresses.entry(address).or_insert_with(before);
        }
    }

    /// Returns the parts of the plan that changed.
    ///
    /// Puts back old values as [`Changed::between`] does.
    pub(super) fn compare(self, after: &mut Desired) -> Changed {
        let mut frontends = BTreeSet::new();
        for (frontend, before) in self.frontends {
            match (before, after.frontends.get_mut(&frontend)) {
                (Some(before), Some(now)) if before == *now => *now = before,
                (None, None) => {}
                _ => _ = frontends.insert(frontend),
            }
        }
        let addresses = self.addresses.into_iter();
        Changed {
            frontends,
            addresses: addresses
                .filter(|(address, before)| {
                    let now = after.addresses.get(address).copied();
                    *before != now.map(LocalAddress::new)
                })
                .map(|(address, _)| address)
                .collect(),
            local_endpoints: (self.local_endpoints.into_iter())
                .filter(|(address, before)| *before != after.local_endpoints.contains(address))
                .map(|(address, _)| address)
                .collect(),
            health_checks: (self.health_checks.into_iter())
                .filter(|(port, before)| before.as_ref() != after.health_checks.get(port))
                .map(|(port, _)| port)
                .collect(),
        }
    }
}
