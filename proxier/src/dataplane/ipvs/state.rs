//! The kernel's state as far as known, and drift.

use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink::{Family, ServiceKey};

use super::foreign::Inherited;
use super::kernel::Portion;
use super::{Kernel, KernelParts, Wanted};
use crate::cluster::problem::Problem;
use crate::dataplane::Failure;
use crate::dataplane::ipvs::ledger::Owned;
use crate::dataplane::ipvs::observed::{Carrier, Observed};
use crate::dataplane::ipvs::split_map::SplitMap;
use crate::plan::Desired;
use crate::util::timer::Timer;

/// The longest time between two resyncs that read all virtual servers over netlink; in large tables
/// [`rarity`] multiplies it.
///
/// The other resyncs look first ([`Kernel::shows_virtual_servers`]), which costs a fraction of a full
/// read. So drift in a field that a look does not show lasts this long at most.
const READ_PERIOD: Duration = Duration::from_secs(600);

/// The number of virtual servers and destinations at which a resync may look on average.
///
/// A look at one takes about two microseconds. So the looks at any number of them take about half of the
/// 0.1 % of a processor that an idle node may use at the default period of 30 s.
const LOOKS_PER_RESYNC: usize = 8_000;

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
    /// When all virtual servers were last read over netlink, in time since boot.
    read_at: Duration,
    /// The number of looks at the beginning since the last look or read of all virtual servers.
    glances: u32,
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
            read_at: Duration::ZERO,
            glances: 0,
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

    /// Reads the whole kernel and returns the drift from the `expected` state.
    ///
    /// If a look shows the expected virtual servers, they are not read. If the look is only at the
    /// beginning of the table, addresses are read only after a notification.
    pub(super) fn read(
        &mut self,
        expected: Option<Observed>,
        kernel: &mut impl Kernel,
        wanted: Wanted<'_>,
        owned: &Owned,
        now: Duration,
    ) -> Result<KernelParts, Failure> {
        let Some(mut expected) = expected else {
            self.read_all(kernel, wanted, owned, now)?;
            return Ok(KernelParts::default());
        };
        let rarity = rarity(&expected);
        let may_look = now < self.read_at + READ_PERIOD * rarity;
        let portion = match self.glances + 1 < rarity {
            true => Portion::Beginning,
            false => Portion::Whole,
        };
        // Without `may_look`, a full read is due for the fields that no look shows.
        if !may_look || !kernel.shows_virtual_servers(&expected.virtual_servers, portion) {
            self.read_all(kernel, wanted, owned, now)?;
            return Ok(drift(&expected, &self.observed, wanted));
        }
        self.glances = match portion {
            Portion::Beginning => self.glances + 1,
            Portion::Whole => 0,
        };
        // The kernel reports changes of routes, so reading them can wait for a look at the whole table.
        if portion == Portion::Beginning && self.knows_addresses {
            self.observed = expected;
            return Ok(KernelParts::default());
        }
        let before = expected.replace_addresses(kernel.addresses()?);
        let before = (&before.addresses, before.carrier);
        let drifted = address_drift(before, (&expected.addresses, expected.carrier));
        self.observed = expected;
        Ok(drifted)
    }

    fn read_all(
        &mut self,
        kernel: &mut impl Kernel,
        wanted: Wanted<'_>,
        owned: &Owned,
        now: Duration,
    ) -> Result<(), Failure> {
        self.observed = kernel.observe(wanted, &mut owned.keys())?;
        self.read_at = now;
        self.glances = 0;
        Ok(())
    }
}

/// Returns `n` if every nth resync looks at the whole table: 1 up to [`LOOKS_PER_RESYNC`].
fn rarity(expected: &Observed) -> u32 {
    let servers = expected.virtual_servers.values();
    let all: usize = servers.map(|server| 1 + server.destinations.len()).sum();
    u32::try_from(all.div_ceil(LOOKS_PER_RESYNC)).map_or(u32::MAX, |rarity| rarity.max(1))
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

/// Returns the drift: desired virtual servers, service addresses and the carrier in which `found`
/// differs from `expected`.
///
/// Virtual servers that are not desired are not compared: they are foreign, or this round deletes them.
fn drift(expected: &Observed, found: &Observed, wanted: Wanted<'_>) -> KernelParts {
    let is_changed =
        |key: &ServiceKey| expected.virtual_servers.get(key) != found.virtual_servers.get(key);
    let keys = wanted.keys();
    let found = (&found.addresses, found.carrier);
    KernelParts {
        virtual_servers: keys.filter(is_changed).collect(),
        ..address_drift((&expected.addresses, expected.carrier), found)
    }
}

/// The addresses of a state, and the carrier.
type Local<'a> = (&'a SplitMap<IpAddr, Option<IpAddr>>, Option<Carrier>);

/// Returns the drift of the service addresses and of the carrier alone.
pub(super) fn address_drift(expected: Local<'_>, found: Local<'_>) -> KernelParts {
    let addresses = expected.0.keys().chain(found.0.keys());
    KernelParts {
        addresses: addresses
            .filter(|address| expected.0.get(address) != found.0.get(address))
            .collect(),
        carrier: expected.1 != found.1,
        ..KernelParts::default()
    }
}
