//! Removed endpoints on their way out.
//!
//! ```text
//!            removed                no connection left, or deadline
//! wanted ─────────────▶ draining ─────────────────────────────────▶ over ──deleted──▶ gone
//!    ▲  weight as planned  │ weight 0
//!    └─────────────────────┘ wanted again
//! ```
//!
//! A draining destination gets no new connection and keeps those it has. IPVS would drop the packets
//! of a deleted one's. Time is passed in: as the time since boot, which means the same to the
//! process that is started next.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::observed::Found;

/// How soon a draining destination's connections are counted for the first time, and how often while
/// they keep ending.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// How often they are counted in the end; every look costs five system calls per virtual server.
const LAST_LOOK: Duration = Duration::from_secs(30);

/// All draining destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    servers: BTreeMap<ipvs::ServiceKey, Server>,
}

/// The draining destinations of one virtual server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Server {
    destinations: BTreeMap<ipvs::DestinationKey, Drain>,
    /// When their connections are counted next, and how long that was put off.
    look_at: Duration,
    wait: Duration,
}

/// How far a destination is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// When it goes whatever connections it has, in time since boot.
    pub deadline: Duration,
    /// Whether it may go now.
    pub is_over: bool,
}

impl Drains {
    /// How far a destination is; `None` when it is not draining.
    pub fn get(&self, key: &ipvs::ServiceKey, destination: &ipvs::DestinationKey) -> Option<Drain> {
        let server = self.servers.get(key)?;
        server.destinations.get(destination).copied()
    }

    /// The draining destinations of a virtual server.
    pub fn of(&self, key: &ipvs::ServiceKey) -> Vec<ipvs::DestinationKey> {
        let server = self.servers.get(key);
        server.map_or_else(Vec::new, |server| {
            server.destinations.keys().copied().collect()
        })
    }

    /// A destination has weight 0 now and drains until `deadline`. Answers whether that is new: one
    /// that drains already keeps its own deadline.
    pub fn begin(
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
        server.wait = FIRST_LOOK;
        server.look_at = now + FIRST_LOOK;
        true
    }

    /// A destination is wanted, or gone. Answers whether it was draining.
    pub fn end(&mut self, key: &ipvs::ServiceKey, destination: &ipvs::DestinationKey) -> bool {
        let Some(server) = self.servers.get_mut(key) else {
            return false;
        };
        let was_draining = server.destinations.remove(destination).is_some();
        if server.destinations.is_empty() {
            self.servers.remove(key);
        }
        was_draining
    }

    /// A virtual server is gone, and its destinations with it.
    pub fn end_all(&mut self, key: &ipvs::ServiceKey) {
        self.servers.remove(key);
    }

    /// The virtual servers whose connections are to be counted now.
    pub fn due(&self, now: Duration) -> Vec<ipvs::ServiceKey> {
        let due = self.servers.iter();
        due.filter(|(_, server)| server.look_at <= now)
            .map(|(key, _)| *key)
            .collect()
    }

    /// When connections are to be counted next.
    pub fn next_due(&self) -> Option<Duration> {
        self.servers.values().map(|server| server.look_at).min()
    }

    /// The connections of a virtual server's destinations were counted: what has none left, or no
    /// time, is over.
    ///
    /// Answers the draining destinations that turned out not to exist any more.
    pub fn counted(
        &mut self,
        key: &ipvs::ServiceKey,
        found: Option<&Found>,
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
        server.look_at = (now + server.wait).min(next_deadline).max(now + FIRST_LOOK);
        server.wait = (server.wait * 2).min(LAST_LOOK);
        for destination in &gone {
            self.end(key, destination);
        }
        gone
    }

    /// Every draining destination.
    pub fn iter(
        &self,
    ) -> impl Iterator<Item = (ipvs::ServiceKey, ipvs::DestinationKey, Drain)> + '_ {
        self.servers.iter().flat_map(|(key, server)| {
            let destinations = server.destinations.iter();
            destinations.map(|(destination, drain)| (*key, *destination, *drain))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::{Connections, ObservedServer};

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

    fn found(last: u8, active: u32, inactive: u32) -> Found {
        let scheduler = ipvs::SchedulerName::new("rr").unwrap();
        let destinations = vec![ipvs::Destination::new(destination(last), 0)];
        Found {
            server: ObservedServer {
                service: ipvs::Service::new(KEY, scheduler),
                destinations: destinations.into(),
            },
            connections: vec![Connections { active, inactive }],
        }
    }

    fn is_over(drains: &Drains, last: u8) -> bool {
        drains.get(&KEY, &destination(last)).unwrap().is_over
    }

    #[test]
    fn over_when_the_last_connection_is_gone() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(10), seconds(70));
        assert_eq!(drains.due(seconds(10)), []);
        assert_eq!(drains.due(seconds(11)), [KEY]);
        drains.counted(&KEY, Some(&found(1, 0, 3)), seconds(11));
        assert!(!is_over(&drains, 1));
        drains.counted(&KEY, Some(&found(1, 0, 0)), seconds(12));
        assert!(is_over(&drains, 1));
        assert!(drains.end(&KEY, &destination(1)));
        assert_eq!(drains, Drains::default());
    }

    #[test]
    fn over_at_the_deadline_which_is_looked_for_in_time() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(0), seconds(100));
        let mut looks = 0;
        while !is_over(&drains, 1) {
            let now = drains.next_due().unwrap();
            assert!(now <= seconds(100));
            drains.counted(&KEY, Some(&found(1, 1, 0)), now);
            looks += 1;
        }
        // 1, 2, 4, .. 30 seconds apart.
        assert!(looks < 12, "{looks}");
    }

    #[test]
    fn at_once_without_time() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(5), seconds(5));
        assert!(is_over(&drains, 1));
    }

    #[test]
    fn a_second_beginning_keeps_the_first_deadline() {
        let mut drains = Drains::default();
        drains.begin(KEY, destination(1), seconds(0), seconds(60));
        drains.begin(KEY, destination(1), seconds(30), seconds(90));
        let drain = drains.get(&KEY, &destination(1)).unwrap();
        assert_eq!(drain.deadline, seconds(60));
    }

    #[test]
    fn what_somebody_else_deleted_is_forgotten() {
        let mut drains = Drains::default();
        for last in [1, 2] {
            drains.begin(KEY, destination(last), seconds(0), seconds(60));
        }
        let gone = drains.counted(&KEY, Some(&found(2, 1, 0)), seconds(1));
        assert_eq!(gone, [destination(1)]);
        assert_eq!(drains.iter().count(), 1);
    }
}
