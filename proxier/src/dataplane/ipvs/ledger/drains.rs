//! Draining: a removed destination keeps its connections until they end or its deadline is over.
//!
//! ```text
//!            removed                no connection left, or deadline
//! desired ─────────────▶ draining ─────────────────────────────────▶ over ──deleted──▶ gone
//!    ▲  weight as planned   │ weight 0
//!    └──────────────────────┘ desired again
//! ```
//!
//! A draining destination gets no new connections. If it were deleted at once, IPVS would drop the
//! packets of its existing ones (`ip_vs_in_hook`, `expire_nodest_conn`). Times are durations since
//! boot, because these stay valid when another process continues.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::ipvs::observed::CountedServer;
use crate::util::timer::Timer;

/// The first pause between two counts of connections.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between two counts. A count costs five system calls per virtual server.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// All draining destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    servers: BTreeMap<ipvs::ServiceKey, DrainingServer>,
}

/// The draining destinations of one virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DrainingServer {
    destinations: BTreeMap<ipvs::DestinationKey, Drain>,
    /// The timer of the next count of their connections.
    count: Timer,
}

impl Default for DrainingServer {
    fn default() -> Self {
        Self {
            destinations: BTreeMap::new(),
            count: count_timer(),
        }
    }
}

/// The drain of a destination, or of a retired virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// When the destination is deleted even if it has connections.
    pub deadline: Duration,
    /// Whether the destination may be deleted now.
    pub is_over: bool,
}

/// Returns a timer for counts of connections. It is not set.
pub(super) fn count_timer() -> Timer {
    Timer::doubling(FIRST_PAUSE, LONGEST_PAUSE)
}

/// Sets `timer` to the next count after one at `now`.
pub(super) fn next_count(timer: &mut Timer, next_deadline: Duration, now: Duration) {
    timer.back_off(now);
    // Not later than the next deadline, but never at once: if deletions fail again and again, the deadline
    // is in the past.
    timer.no_later_than(next_deadline.max(now + FIRST_PAUSE));
}

impl Drains {
    /// Returns the drain of a destination; `None` if it does not drain.
    pub fn get(&self, key: &ipvs::ServiceKey, destination: &ipvs::DestinationKey) -> Option<Drain> {
        let server = self.servers.get(key)?;
        server.destinations.get(destination).copied()
    }

    /// Returns the draining destinations of a virtual server.
    pub fn of<'a>(
        &'a self,
        key: &ipvs::ServiceKey,
    ) -> impl Iterator<Item = (ipvs::DestinationKey, Drain)> + use<'a> {
        let server = self.servers.get(key).into_iter();
        server.flat_map(|server| server.destinations.iter().map(|(it, drain)| (*it, *drain)))
    }

    /// Returns the virtual servers that have draining destinations.
    pub fn virtual_servers(&self) -> impl Iterator<Item = &ipvs::ServiceKey> {
        self.servers.keys()
    }

    /// Returns the virtual servers whose count of connections is due at `now`.
    pub(super) fn due(&self, now: Duration) -> impl Iterator<Item = ipvs::ServiceKey> + '_ {
        let due = self.servers.iter();
        due.filter(move |(_, server)| server.count.is_due(now))
            .map(|(key, _)| *key)
    }

    /// Returns when the next count of connections is due.
    pub fn next_due(&self) -> Option<Duration> {
        let timers = self.servers.values().map(|server| server.count.due());
        timers.flatten().min()
    }

    /// Returns every draining destination.
    pub fn iter(
        &self,
    ) -> impl Iterator<Item = (ipvs::ServiceKey, ipvs::DestinationKey, Drain)> + '_ {
        self.servers.iter().flat_map(|(key, server)| {
            let destinations = server.destinations.iter();
            destinations.map(|(destination, drain)| (*key, *destination, *drain))
        })
    }

    /// Begins the drain of a destination. Returns whether the destination was not draining.
    ///
    /// A destination that drains already keeps its deadline.
    pub(super) fn begin(
        &mut self,
        key: ipvs::ServiceKey,
        destination: ipvs::DestinationKey,
        now: Duration,
        deadline: Duration,
    ) -> bool {
        let server = self.servers.entry(key).or_default();
        let Entry::Vacant(new) = server.destinations.entry(destination) else {
            return false;
        };
        new.insert(Drain {
            deadline,
            is_over: deadline <= now,
        });
        // The connections of the new drain may end soon, so counts are frequent again.
        server.count.reset();
        server.count.back_off(now);
        true
    }

    /// Ends the drain of a destination. Returns whether the destination was draining.
    pub(super) fn end(
        &mut self,
        key: &ipvs::ServiceKey,
        destination: &ipvs::DestinationKey,
    ) -> bool {
        let Some(server) = self.servers.get_mut(key) else {
            return false;
        };
        let was_draining = server.destinations.remove(destination).is_some();
        if server.destinations.is_empty() {
            self.servers.remove(key);
        }
        was_draining
    }

    /// Ends the drains of all destinations of a virtual server.
    pub(super) fn end_all(&mut self, key: &ipvs::ServiceKey) {
        self.servers.remove(key);
    }

    /// Marks the drain of each destination without connections, or past its deadline, as over.
    ///
    /// Ends the drains of destinations that the kernel no longer has, and returns these destinations.
    pub(super) fn counted(
        &mut self,
        key: &ipvs::ServiceKey,
        found: Option<&CountedServer>,
        now: Duration,
    ) -> Vec<ipvs::DestinationKey> {
        let Some(server) = self.servers.get_mut(key) else {
            return Vec::new();
        };
        let mut gone = Vec::new();
        let mut next_deadline = Duration::MAX;
        for (destination, drain) in &mut server.destinations {
            let connections = found.and_then(|found| found.connections_of(destination));
            match connections {
                Some(left) => drain.is_over |= left.are_none() || drain.deadline <= now,
                None => gone.push(*destination),
            }
            if !drain.is_over {
                next_deadline = next_deadline.min(drain.deadline);
            }
        }
        next_count(&mut server.count, next_deadline, now);
        for destination in &gone {
            self.end(key, destination);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::ipvs::observed::{Connections, ObservedServer};

    const KEY: ipvs::ServiceKey = ipvs::ServiceKey::Mark {
        family: ipvs::Family::V4,
        mark: 1,
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn destination(last: u8) -> ipvs::DestinationKey {
        ipvs::DestinationKey {
            address: [10, 0, 0, last].into(),
            port: 80,
        }
    }

    fn found(last: u8, active: u32, inactive: u32) -> CountedServer {
        let scheduler = ipvs::SchedulerName::new("rr").unwrap();
        let mut server = ObservedServer::empty(&ipvs::Service::new(KEY, scheduler));
        server.destinations = vec![ipvs::Destination::new(destination(last), 0)].into();
        CountedServer {
            key: KEY,
            server,
            connections: vec![Connections { active, inactive }],
        }
    }

    fn is_over(drains: &Drains, last: u8) -> bool {
        drains.get(&KEY, &destination(last)).unwrap().is_over
    }

    #[test]
    fn a_drain_is_over_when_the_last_connection_ended() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(10), seconds(70));
        assert_eq!(drains.due(seconds(10)).count(), 0);
        assert!(drains.due(seconds(11)).eq([KEY]));
        drains.counted(&KEY, Some(&found(1, 0, 3)), seconds(11));
        assert!(!is_over(&drains, 1));
        drains.counted(&KEY, Some(&found(1, 0, 0)), seconds(12));
        assert!(is_over(&drains, 1));
        assert!(drains.end(&KEY, &destination(1)));
        assert_eq!(drains, Drains::default());
    }

    #[test]
    fn a_drain_with_connections_is_over_at_its_deadline() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(0), seconds(100));
        let mut counts = 0;
        while !is_over(&drains, 1) {
            let now = drains.next_due().unwrap();
            assert!(now <= seconds(100));
            drains.counted(&KEY, Some(&found(1, 1, 0)), now);
            counts += 1;
        }
        // The counts are 1, 2, 4, .. 30 seconds apart.
        assert!(counts < 12, "{counts}");
    }

    #[test]
    fn a_drain_whose_deadline_is_now_is_over_at_once() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(5), seconds(5));
        assert!(is_over(&drains, 1));
    }

    #[test]
    fn a_drain_that_begins_twice_keeps_its_first_deadline() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(0), seconds(60));
        drains.begin(KEY, destination(1), seconds(30), seconds(90));
        let drain = drains.get(&KEY, &destination(1)).unwrap();
        assert_eq!(drain.deadline, seconds(60));
    }

    #[test]
    fn a_destination_that_another_program_deleted_no_longer_drains() {
        let mut drains = Drains::default();
        for last in [1, 2] {
            drains.begin(KEY, destination(last), seconds(0), seconds(60));
        }
        let gone = drains.counted(&KEY, Some(&found(2, 1, 0)), seconds(1));
        assert_eq!(gone, [destination(1)]);
        assert_eq!(drains.iter().count(), 1);
    }
}
