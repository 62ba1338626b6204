//! When failed Ops are tried again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::op::Op;

/// How soon for the first time; doubled for every further failure.
const FIRST: Duration = Duration::from_secs(1);

/// How long at most.
const LAST: Duration = Duration::from_secs(30);

/// What failed and is to be tried again; nothing else waits for it.
#[derive(Clone, Debug, Default)]
pub struct Retries {
    targets: BTreeMap<Target, Wait>,
    at_once: Option<Duration>,
}

/// What an Op changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    VirtualServer(ipvs::ServiceKey),
    Address(IpAddr),
}

/// When one thing that failed is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    due: Option<Duration>,
    next: Duration,
}

/// Nothing has failed yet.
impl Default for Wait {
    fn default() -> Self {
        Self {
            due: None,
            next: FIRST,
        }
    }
}

impl Wait {
    /// It failed at `now`: the next try is due twice as long after as the last time.
    pub fn failed(&mut self, now: Duration) {
        self.due = Some(now + self.next);
        self.next = (self.next * 2).min(LAST);
    }

    /// When it is to be tried again; `None` when it has not failed, or while it is being tried.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }
}

impl Retries {
    /// `op` failed at `now`.
    pub fn add(&mut self, op: &Op, now: Duration) {
        let target = match (op.service_key(), op.address()) {
            (Some(key), _) => Target::VirtualServer(key),
            (None, Some(address)) => Target::Address(address),
            (None, None) => return,
        };
        let wait = self.targets.entry(target).or_default();
        // Several Ops of one round may fail at one target; that is one failure.
        if wait.due.is_none() {
            wait.failed(now);
        }
    }

    /// Another round is wanted at `now`, which may be later than now.
    pub fn at_once(&mut self, now: Duration) {
        self.at_once = Some(self.at_once.map_or(now, |sooner| sooner.min(now)));
    }

    /// The virtual servers to try again now. Those that do not fail again are forgotten after
    /// [`Retries::settle`].
    pub fn due(&mut self, now: Duration) -> Vec<ipvs::ServiceKey> {
        self.at_once = None;
        self.take_due(now, |target| match target {
            Target::VirtualServer(key) => Some(key),
            Target::Address(_) => None,
        })
    }

    /// The addresses to try again now.
    pub fn due_addresses(&mut self, now: Duration) -> Vec<IpAddr> {
        self.take_due(now, |target| match target {
            Target::Address(address) => Some(address),
            Target::VirtualServer(_) => None,
        })
    }

    /// Those of the targets that `choose` takes and that are due; they are on their way now.
    fn take_due<T>(&mut self, now: Duration, choose: impl Fn(Target) -> Option<T>) -> Vec<T> {
        let mut taken = Vec::new();
        for (&target, wait) in &mut self.targets {
            if wait.due.is_some_and(|due| due <= now)
                && let Some(target) = choose(target)
            {
                wait.due = None;
                taken.push(target);
            }
        }
        taken
    }

    /// A round is over: what was tried in it and did not fail again is done.
    pub fn settle(&mut self) {
        self.targets.retain(|_, wait| wait.due.is_some());
    }

    /// Everything is tried again now; what fails again waits longer than before.
    pub fn all(&mut self) {
        for wait in self.targets.values_mut() {
            wait.due = None;
        }
        self.at_once = None;
    }

    /// When something is due next.
    pub fn next_due(&self) -> Option<Duration> {
        let targets = self.targets.values().filter_map(|wait| wait.due);
        targets.chain(self.at_once).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ipvs::ServiceKey = ipvs::ServiceKey::Mark {
        family: ipvs::Family::V4,
        mark: 1,
    };

    #[test]
    fn waits_twice_as_long_after_every_failure_and_forgets_after_success() {
        let mut retries = Retries::default();
        let mut now = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..7 {
            // Two failures of one round are one.
            retries.add(&Op::DeleteService(KEY), now);
            retries.add(&Op::DeleteService(KEY), now);
            retries.settle();
            let due = retries.next_due().unwrap();
            assert_eq!(retries.due(due - Duration::from_millis(1)), []);
            waits.push((due - now).as_secs());
            now = due;
            assert_eq!(retries.due(now), [KEY]);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        retries.settle();
        assert_eq!(retries.next_due(), None);
        retries.add(&Op::DeleteService(KEY), now);
        assert_eq!(retries.next_due(), Some(now + FIRST));
    }

    #[test]
    fn addresses_wait_for_themselves() {
        let mut retries = Retries::default();
        let address: IpAddr = [10, 96, 0, 1].into();
        retries.add(&Op::DeleteAddress(address), Duration::ZERO);
        assert_eq!(retries.due(LAST), []);
        assert_eq!(retries.due_addresses(LAST), [address]);
    }
}
