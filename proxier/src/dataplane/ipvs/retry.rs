//! The times at which failed Ops are tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::ipvs::KernelParts;
use crate::dataplane::ipvs::op::Op;
use crate::util::timer::Timer;

/// The virtual servers and addresses of failed Ops, each with its own timer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retries {
    virtual_servers: BTreeMap<ipvs::ServiceKey, Timer>,
    addresses: BTreeMap<IpAddr, Timer>,
    /// The timer of the carrier, which every round compares.
    carrier: Option<Timer>,
}

impl Retries {
    /// Schedules another try of the target of `op`, which failed at `now`.
    pub(crate) fn add(&mut self, op: &Op, now: Duration) {
        let timer = match (op.service_key(), op.address()) {
            (Some(key), _) => self.virtual_servers.entry(key).or_insert_with(Timer::retry),
            (None, Some(address)) => self.addresses.entry(address).or_insert_with(Timer::retry),
            (None, None) => self.carrier.get_or_insert_with(Timer::retry),
        };
        // Several Ops of one round may fail at one target. They count as one failure.
        if timer.due().is_none() {
            timer.back_off(now);
        }
    }

    /// Returns the targets to try again at `now`, and clears their timers.
    ///
    /// At the end of the round, [`Retries::settle`] removes the targets that did not fail again.
    pub(crate) fn take_due(&mut self, now: Duration) -> KernelParts {
        if let Some(timer) = &mut self.carrier
            && timer.is_due(now)
        {
            timer.clear();
        }
        KernelParts {
            virtual_servers: take_due(&mut self.virtual_servers, now),
            addresses: take_due(&mut self.addresses, now),
            ..KernelParts::default()
        }
    }

    /// Removes the targets that this round tried and that did not fail again.
    pub(crate) fn settle(&mut self) {
        self.virtual_servers
            .retain(|_, timer| timer.due().is_some());
        self.addresses.retain(|_, timer| timer.due().is_some());
        self.carrier.take_if(|timer| timer.due().is_none());
    }

    /// Clears every timer, because a resync tries all targets. Pauses keep their length.
    pub(crate) fn try_all(&mut self) {
        let servers = self.virtual_servers.values_mut();
        servers
            .chain(self.addresses.values_mut())
            .chain(&mut self.carrier)
            .for_each(Timer::clear);
    }

    /// Returns the number of targets whose Ops fail.
    pub(crate) fn len(&self) -> usize {
        self.virtual_servers.len() + self.addresses.len()
    }

    /// Returns when the next target is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let servers = self.virtual_servers.values();
        let timers = servers.chain(self.addresses.values()).chain(&self.carrier);
        timers.filter_map(Timer::due).min()
    }
}

fn take_due<K: Copy + Ord>(timers: &mut BTreeMap<K, Timer>, now: Duration) -> BTreeSet<K> {
    let due = timers.iter_mut().filter(|(_, timer)| timer.is_due(now));
    due.map(|(key, timer)| {
        timer.clear();
        *key
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ipvs::ServiceKey = ipvs::ServiceKey::Mark {
        family: ipvs::Family::V4,
        mark: 1,
    };

    fn servers(due: &KernelParts) -> Vec<ipvs::ServiceKey> {
        due.virtual_servers.iter().copied().collect()
    }

    #[test]
    fn a_target_waits_twice_as_long_after_every_failure_and_is_forgotten_after_success() {
        let mut retries = Retries::default();
        let mut now = Duration::ZERO;
        for pause in [1, 2, 4] {
            // Two failures of one round are one.
            retries.add(&Op::DeleteService(KEY), now);
            retries.add(&Op::DeleteService(KEY), now);
            retries.settle();
            let due = retries.next_due().unwrap();
            assert_eq!((due - now).as_secs(), pause);
            let early = retries.take_due(due - Duration::from_millis(1));
            assert_eq!(early, KernelParts::default());
            now = due;
            assert_eq!(servers(&retries.take_due(now)), [KEY]);
        }
        retries.settle();
        assert_eq!(retries.next_due(), None);
        retries.add(&Op::DeleteService(KEY), now);
        assert_eq!(retries.next_due(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn addresses_and_virtual_servers_have_timers_of_their_own() {
        let mut retries = Retries::default();
        let address: IpAddr = [10, 96, 0, 1].into();
        retries.add(&Op::DeleteAddress(address), Duration::ZERO);
        retries.add(&Op::DeleteService(KEY), Duration::from_secs(9));
        let due = retries.take_due(Duration::from_secs(1));
        assert_eq!(servers(&due), []);
        assert_eq!(due.addresses, [address].into());
    }
}
