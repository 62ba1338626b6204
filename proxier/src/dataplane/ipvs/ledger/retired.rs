//! Retired virtual servers: their Service still exists, but no longer asks for them.
//!
//! ```text
//!          no longer asked for                no connection left, or deadline
//! desired ────────────────────▶ retired ──────────────────────────────────▶ over ──deleted──▶ gone
//!    ▲    weights as planned      │ weights 0, new connections are rejected
//!    └────────────────────────────┘ desired again
//! ```
//!
//! If a retired virtual server were deleted at once, the kernel would reset its connections
//! (`expire_nodest_conn`), although their endpoints exist. It is deleted as a whole when its last
//! connection has ended. Destinations that drained before keep their earlier deadlines
//! ([`super::Drains`]).
//!
//! It is counted together with the virtual server of its firewall mark: clients inside the cluster may use the removed
//! address through the mark, and the kernel does not count connections by address.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use super::drains::{Drain, count_timer, next_count};
use super::{Ledger, Record};
use crate::dataplane::ipvs::observed::CountedServer;
use crate::util::timer::Timer;

/// All retired virtual servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    servers: BTreeMap<ipvs::ServiceKey, RetiredServer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RetiredServer {
    drain: Drain,
    /// The timer of the next count of its connections.
    count: Timer,
}

impl Retired {
    /// Returns the drain of a virtual server; `None` if it is not retired.
    pub fn get(&self, key: &ipvs::ServiceKey) -> Option<Drain> {
        self.servers.get(key).map(|server| server.drain)
    }

    /// Returns whether a virtual server is retired.
    pub fn contains(&self, key: &ipvs::ServiceKey) -> bool {
        self.servers.contains_key(key)
    }

    /// Returns whether a virtual server is retired and stays, because it may have connections.
    pub fn keeps(&self, key: &ipvs::ServiceKey) -> bool {
        self.get(key).is_some_and(|drain| !drain.is_over)
    }

    /// Returns the addresses that connections to retired virtual servers need.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let staying = self.iter().filter(|(_, drain)| !drain.is_over);
        staying.filter_map(|(key, _)| key.address())
    }

    /// Returns whether no virtual server is retired.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }

    /// Returns every retired virtual server with its drain, in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (ipvs::ServiceKey, Drain)> + '_ {
        let servers = self.servers.iter();
        servers.map(|(key, server)| (*key, server.drain))
    }

    /// Returns the virtual servers whose count of connections is due at `now`.
    pub(super) fn due(&self, now: Duration) -> impl Iterator<Item = ipvs::ServiceKey> + '_ {
        let due = self.servers.iter();
        due.filter(move |(_, server)| server.count.is_due(now))
            .map(|(key, _)| *key)
    }

    /// Returns when the next count of connections is due.
    pub(super) fn next_due(&self) -> Option<Duration> {
        let timers = self.servers.values().map(|server| server.count.due());
        timers.flatten().min()
    }

    /// Retires a virtual server. Returns whether it was not retired; if it was, it keeps its
    /// deadline.
    fn begin(&mut self, key: ipvs::ServiceKey, now: Duration, deadline: Duration) -> bool {
        let Entry::Vacant(new) = self.servers.entry(key) else {
            return false;
        };
        let mut count = count_timer();
        count.back_off(now);
        // With a drain time of 0, nothing waits for the first count of connections.
        let drain = Drain {
            deadline,
            is_over: deadline <= now,
        };
        new.insert(RetiredServer { drain, count });
        true
    }

    pub(super) fn end(&mut self, key: &ipvs::ServiceKey) -> bool {
        self.servers.remove(key).is_some()
    }

    fn counted(&mut self, key: &ipvs::ServiceKey, has_connections: bool, now: Duration) {
        if let Some(RetiredServer { drain, count }) = self.servers.get_mut(key) {
            drain.is_over |= !has_connections || drain.deadline <= now;
            next_count(count, drain.deadline, now);
        }
    }
}

impl Ledger {
    /// Returns the retired virtual servers.
    pub fn retired(&self) -> &Retired {
        &self.retired
    }

    /// Records that a virtual server is retired from `now` until `deadline` at the latest.
    ///
    /// A virtual server that is retired already keeps its first deadline.
    pub fn retire(&mut self, key: ipvs::ServiceKey, now: Duration, deadline: Duration) {
        if self.retired.begin(key, now, deadline) {
            self.enqueue(Record::retire(key, deadline));
        }
    }

    /// Records that a virtual server is no longer retired: it is desired again, deleted, or its Service
    /// is deleted.
    pub fn end_retirement(&mut self, key: &ipvs::ServiceKey) {
        if self.retired.end(key) {
            self.enqueue(Record::unretire(*key));
        }
    }

    /// Updates the retirement of a virtual server by its connections `found` at `now`.
    ///
    /// `found` is `None` if the kernel no longer has it. `inside` has the virtual servers of the Service port's
    /// inside marks. Their connections may use the frontend's address, and the kernel does not count them by address.
    pub fn count_retired(
        &mut self,
        key: &ipvs::ServiceKey,
        found: Option<&CountedServer>,
        inside: &[CountedServer],
        now: Duration,
    ) {
        if found.is_none() {
            return self.end_retirement(key);
        }
        let mut both = found.into_iter().chain(inside);
        let has_connections = both.any(CountedServer::has_connections);
        self.retired.counted(key, has_connections, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ipvs::ServiceKey = ipvs::ServiceKey::Address {
        protocol: ipvs::Protocol::Tcp,
        address: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 5)),
        port: 443,
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn retired() -> Retired {
        let mut retired = Retired::default();
        assert!(retired.begin(SERVER, seconds(10), seconds(100)));
        assert!(!retired.begin(SERVER, seconds(20), seconds(200)));
        retired
    }

    #[test]
    fn a_retired_virtual_server_keeps_itself_and_its_address_until_its_last_connection_ends() {
        let mut retired = retired();
        assert_eq!(retired.next_due(), Some(seconds(11)));
        retired.counted(&SERVER, true, seconds(11));
        let address = SERVER.address().unwrap();
        assert!(retired.keeps(&SERVER) && retired.addresses().eq([address]));
        retired.counted(&SERVER, false, seconds(13));
        assert!(!retired.keeps(&SERVER) && retired.addresses().next().is_none());
        assert!(retired.end(&SERVER) && !retired.end(&SERVER));
        assert!(retired.is_empty());
    }

    #[test]
    fn a_retired_virtual_server_with_connections_stays_until_its_first_deadline() {
        let mut retired = retired();
        while retired.keeps(&SERVER) {
            let now = retired.next_due().unwrap();
            assert!(now <= seconds(100));
            retired.counted(&SERVER, true, now);
        }
        assert!(retired.due(seconds(101)).eq([SERVER]));
    }
}
