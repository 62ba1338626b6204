//! The kernel's state as far as known, and drift.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink::{Family, ServiceKey};

use super::foreign::Inherited;
use super::{Kernel, KernelParts, Wanted};
use crate::cluster::problem::Problem;
use crate::dataplane::Failure;
use crate::dataplane::ipvs::definition::ServerDefinition;
use crate::dataplane::ipvs::ledger::Owned;
use crate::dataplane::ipvs::observed::{Carrier, Observed, ObservedServer};
use crate::dataplane::ipvs::op::AddressForm;
use crate::dataplane::ipvs::split_map::SplitMap;
use crate::plan::Desired;
use crate::util::timer::Timer;

/// The time in which resyncs read the destinations of every virtual server.
const READ_PERIOD: Duration = Duration::from_secs(600);

/// The fewest virtual servers whose destinations a resync reads. A table of this size is read whole.
///
/// The kernel has no dump of all destinations: those of each virtual server take three system calls. So at each resync,
/// those of a large table would cost an idle node more than all its other work.
const LEAST_SHARE: usize = 500;

/// The observed state of the kernel, and the parts of it that may differ from the plan.
#[derive(Debug)]
pub(super) struct KernelState {
    /// The state as last read or written.
    pub(super) observed: Observed,
    /// Whether `observed` can be trusted: it was read, and since then no answer was lost.
    pub(super) is_known: bool,
    /// Whether `observed` has the present service addresses: since they were read, only Ops changed any.
    pub(super) knows_addresses: bool,
    /// Whether another program may have changed service addresses.
    pub(super) suspects_drift: bool,
    /// When the next step of a change between forms of addresses is due.
    pub(super) follow_up: Timer,
    /// Which virtual servers the next resync reads with their destinations.
    share: Share,
    /// The virtual servers and addresses that the next round compares.
    pub(super) pending: KernelParts,
    /// The virtual servers without a record that an earlier service proxy left; `None` before the first read.
    pub(super) inherited: Option<Inherited>,
}

impl Default for KernelState {
    fn default() -> Self {
        Self {
            observed: Observed::default(),
            is_known: false,
            knows_addresses: false,
            suspects_drift: false,
            follow_up: Timer::retry(),
            pending: KernelParts::default(),
            inherited: None,
            share: Share::default(),
        }
    }
}

impl KernelState {
    /// Returns the virtual servers of firewall marks, owned and foreign.
    pub(super) fn marks(&self) -> impl Iterator<Item = ServiceKey> + '_ {
        let key = |family, mark| ServiceKey::Mark { family, mark };
        let (first, last) = (key(Family::V4, 0), key(Family::V6, u32::MAX));
        let servers = self.observed.virtual_servers.range(first, last);
        servers.map(|(key, _)| key)
    }

    /// Takes the observed state, so that a resync can find drift from it; `None` if it is unknown.
    ///
    /// Until the resync has read it, the state is unknown.
    pub(super) fn expected(&mut self) -> Option<Observed> {
        let is_known = std::mem::take(&mut self.is_known);
        is_known.then(|| std::mem::take(&mut self.observed))
    }

    /// Reads the kernel and returns the drift from the `expected` state.
    ///
    /// Without an expected state, everything is read. Otherwise the virtual servers are, and the destinations of those
    /// that differ and of a share of the others. The kernel reports changes of addresses, so they are read when the
    /// shares begin anew, or after a report.
    pub(super) fn read(
        &mut self,
        expected: Option<Observed>,
        kernel: &mut impl Kernel,
        wanted: Wanted<'_>,
        owned: &Owned,
        now: Duration,
    ) -> Result<KernelParts, Failure> {
        let Some(expected) = expected else {
            self.observed = kernel.observe(wanted, &mut owned.keys())?;
            self.share = Share::begun(now);
            return Ok(KernelParts::default());
        };
        let reads_addresses = self.share.next.is_none() || !self.knows_addresses;
        let share = self.share.take(&expected, now);
        let mut suspects = Vec::new();
        let services = kernel.services()?;
        for service in &services {
            let own = expected.virtual_servers.get(&service.key);
            let is_same = match own {
                Some(own) if own.definition == ServerDefinition::of(service) => {
                    !share.contains(&service.key)
                        || own.destinations == kernel.destinations(&service.key)?
                }
                _ => false,
            };
            if !is_same {
                suspects.push(service.key);
            }
        }
        let is_missing =
            |key: &ServiceKey| services.binary_search_by_key(key, |it| it.key).is_err();
        suspects.extend(expected.virtual_servers.keys().filter(is_missing));
        self.observed = expected;
        let mut drifted = KernelParts::default();
        for key in suspects {
            // What was seen may have been half of another program's change.
            let found = kernel.virtual_server(&key)?.map(|found| found.server);
            if self.observed.virtual_servers.get(&key) != found.as_ref() {
                self.replace(key, found, wanted, &mut drifted);
            }
        }
        if reads_addresses {
            let before = self.observed.replace_addresses(kernel.addresses()?);
            drifted = KernelParts {
                virtual_servers: drifted.virtual_servers,
                ..address_drift((&before.addresses, before.carrier), &self.observed)
            };
        }
        Ok(drifted)
    }

    /// Replaces a virtual server that another program changed. It is drift only if it is wanted: otherwise
    /// it is foreign, or this round deletes it.
    fn replace(
        &mut self,
        key: ServiceKey,
        found: Option<ObservedServer>,
        wanted: Wanted<'_>,
        drifted: &mut KernelParts,
    ) {
        let wanted = wanted.get(&key);
        if wanted.is_some() {
            drifted.virtual_servers.insert(key);
        }
        let Some(mut server) = found else {
            self.observed.virtual_servers.remove(&key);
            return;
        };
        if let Some(wanted) = wanted {
            server.destinations.settle(wanted.endpoints);
        }
        self.observed.virtual_servers.insert(key, server);
    }
}

/// The part of the virtual servers that a resync reads with their destinations.
#[derive(Debug, Default)]
struct Share {
    /// The time of the last resync, in time since boot.
    at: Duration,
    /// The first virtual server that the resyncs since the last beginning have not read; `None`: none is left.
    next: Option<ServiceKey>,
}

impl Share {
    /// Returns the shares that follow a read of everything.
    fn begun(at: Duration) -> Self {
        Self { at, next: None }
    }

    /// Returns the virtual servers of the next share: the part of all that the time since the last resync is of
    /// [`READ_PERIOD`], but at least [`LEAST_SHARE`].
    fn take(&mut self, expected: &Observed, now: Duration) -> BTreeSet<ServiceKey> {
        let servers = &expected.virtual_servers;
        // Rounded up, so that resyncs that are early by a moment do not need one more for the rest.
        let secs = now.saturating_sub(self.at).as_secs() + 1;
        let part = (servers.len() as u64 * secs).div_ceil(READ_PERIOD.as_secs());
        let count = usize::try_from(part).unwrap_or(usize::MAX).max(LEAST_SHARE);
        self.at = now;
        let first = self.next.take();
        let mut left = (servers.keys()).skip_while(|key| first.is_some_and(|first| *key < first));
        let share = left.by_ref().take(count).collect();
        self.next = left.next();
        share
    }
}

/// Returns a Problem for each service address for which another program has a local route too.
///
/// Google's guest agent makes such a route for each forwarded address. The Service works with either
/// route. The kernel keeps both because their metrics differ, and uses ours when the other one is deleted.
pub(super) fn contested(observed: &Observed, desired: &Desired) -> Vec<Problem> {
    let contested = observed.foreign.iter();
    let contested = contested.filter(|(address, _)| desired.addresses.contains_key(address));
    contested
        .map(|(address, how)| {
            let message = format!(
                "is a service address for which another program has a {how}: the Service works, and \
                 connections of this node to it have the source that this route names"
            );
            Problem::new("This node", "local addresses", address, message)
        })
        .collect()
}

/// The addresses of a state, and the carrier.
type Local<'a> = (&'a SplitMap<IpAddr, Option<IpAddr>>, Option<Carrier>);

/// Returns the drift of the service addresses and of the carrier alone.
///
/// No program but this one writes our routes, so an address that is a route of ours in another place is on its way: the
/// places depend on whether the carrier has addresses.
pub(super) fn address_drift(expected: Local<'_>, found: &Observed) -> KernelParts {
    let addresses = expected.0.keys().chain(found.addresses.keys());
    let is_route = |form| matches!(form, AddressForm::Route(_));
    let is_moving = |address: &IpAddr| {
        !found.addresses.contains_key(address) && found.leftovers_of(*address).any(is_route)
    };
    KernelParts {
        addresses: addresses
            .filter(|address| expected.0.get(address) != found.addresses.get(address))
            .filter(|address| !is_moving(address))
            .collect(),
        carrier: expected.1 != found.carrier,
        ..KernelParts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resyncs_read_all_destinations_of_a_large_table_within_ten_minutes() {
        let start = Duration::from_secs(1_000);
        let server = |number: u32| {
            let [_, high, middle, low] = number.to_be_bytes();
            let key = ServiceKey::Address {
                protocol: ipvs_netlink::Protocol::Tcp,
                address: [10, high, middle, low].into(),
                port: 80,
            };
            let service = ipvs_netlink::Service::new(key, "rr".parse().unwrap());
            (key, ObservedServer::empty(&service))
        };
        let observed = Observed {
            virtual_servers: (0..10_000).map(server).collect(),
            ..Default::default()
        };
        for (period, resyncs) in [(30, 20), (31, 19), (200, 3), (600, 1), (3_600, 1)] {
            let mut share = Share::begun(start);
            let mut read = BTreeSet::new();
            for number in 1..=resyncs {
                let now = start + Duration::from_secs(period) * number;
                read.extend(share.take(&observed, now));
            }
            assert_eq!(read.len(), 10_000, "every {period} s");
        }
    }
}
