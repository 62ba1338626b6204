//! The changes of an update: the touched parts of the plan before it, compared with those after it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Footprint;
use crate::plan::Desired;
use crate::plan::frontend::Frontend;

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
    /// Whether the service ranges changed.
    pub service_ranges: bool,
    /// All of these as they were before, without those that did not exist.
    pub before: Desired,
}

impl Changed {
    /// Returns the changes from the plan `before` to `after`.
    ///
    /// Puts back the old value of an unchanged frontend, because others share its memory.
    pub fn between(before: Desired, after: &mut Desired) -> Self {
        let all = Self {
            frontends: keys(&before.frontends, &after.frontends),
            addresses: keys(&before.addresses, &after.addresses),
            local_endpoints: &before.local_endpoints | &after.local_endpoints,
            health_checks: keys(&before.health_checks, &after.health_checks),
            service_ranges: before.service_ranges != after.service_ranges,
            before,
        };
        all.compare(after)
    }

    /// Notes the parts of the plan that a Service with this footprint touches, before they are touched.
    ///
    /// Only the first value of a part is noted, because later values are intermediate states of the same update.
    pub(super) fn note(&mut self, desired: &Desired, footprint: &Footprint) {
        let before = &mut self.before;
        for &frontend in &footprint.frontends {
            if self.frontends.insert(frontend)
                && let Some(plan) = desired.frontends.get(&frontend)
            {
                before.frontends.insert(frontend, plan.clone());
            }
        }
        for &address in &footprint.rare().local_endpoints {
            if self.local_endpoints.insert(address) && desired.local_endpoints.contains(&address) {
                before.local_endpoints.insert(address);
            }
        }
        if let Some(port) = footprint.rare().health_port
            && self.health_checks.insert(port)
            && let Some(check) = desired.health_checks.get(&port)
        {
            before.health_checks.insert(port, check.clone());
        }
        self.note_addresses(desired, footprint.addresses.iter().copied());
    }

    /// Notes local addresses.
    pub(super) fn note_addresses(
        &mut self,
        desired: &Desired,
        addresses: impl Iterator<Item = IpAddr>,
    ) {
        for address in addresses {
            if self.addresses.insert(address)
                && let Some(source) = desired.addresses.get(&address)
            {
                self.before.addresses.insert(address, *source);
            }
        }
    }

    /// Returns the changes among the noted parts of the plan.
    ///
    /// Puts back old values as [`Changed::between`] does.
    pub(super) fn compare(mut self, after: &mut Desired) -> Self {
        let before = &mut self.before;
        drop_equal(
            &mut self.frontends,
            &mut before.frontends,
            &mut after.frontends,
        );
        drop_equal(
            &mut self.addresses,
            &mut before.addresses,
            &mut after.addresses,
        );
        drop_equal(
            &mut self.health_checks,
            &mut before.health_checks,
            &mut after.health_checks,
        );
        let (old, new) = (&mut before.local_endpoints, &after.local_endpoints);
        (self.local_endpoints).retain(|address| old.contains(address) != new.contains(address));
        old.retain(|address| !new.contains(address));
        if !self.service_ranges {
            before.service_ranges.clear();
        }
        self
    }
}

fn keys<K: Ord + Copy, V>(before: &BTreeMap<K, V>, after: &BTreeMap<K, V>) -> BTreeSet<K> {
    before.keys().chain(after.keys()).copied().collect()
}

/// Drops the keys with equal values. Puts back these old values.
fn drop_equal<K: Ord, V: PartialEq>(
    keys: &mut BTreeSet<K>,
    before: &mut BTreeMap<K, V>,
    after: &mut BTreeMap<K, V>,
) {
    keys.retain(|key| {
        let now = after.get_mut(key);
        let differs = before.get(key) != now.as_deref();
        if !differs && let (Some(old), Some(now)) = (before.remove(key), now) {
            *now = old;
        }
        differs
    });
}
