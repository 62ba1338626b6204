//! Late replies of removed UDP endpoints that block new flows when the endpoint returns.
//!
//! When an endpoint is removed, its flows are deleted. A reply that is still in flight then creates
//! a flow of its own, from the endpoint to the client: a stray. It is harmless unless the endpoint
//! returns within the 30 s of the stray's life. Then the replies of a new flow from the client's port to the
//! endpoint have the stray's tuple, and the kernel drops the packets of the new flow
//! (`__nf_conntrack_confirm`). So the strays of a returned endpoint are deleted several times, while
//! replies may still be in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::dataplane::ipvs::observed::ObservedServer;
use crate::dataplane::ipvs::op::Op;

/// The longest time after its removal in which an endpoint may have strays: the time of its slowest
/// replies, plus the lifetime of an unanswered flow (`nf_conntrack_udp_timeout`, 30 s).
const STRAY_LIFETIME: Duration = Duration::from_secs(60);

/// The maximum number of remembered endpoints. The strays of further endpoints are not deleted.
const MAX_REMEMBERED: usize = 4_096;

/// When strays are deleted, counted from the return of their endpoint.
const SWEEPS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// The UDP endpoints that were removed recently, and those of them that returned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strays {
    /// When each endpoint was removed.
    removed: BTreeMap<SocketAddr, Duration>,
    /// When expired entries of `removed` were last deleted.
    tidied: Duration,
    returned: BTreeMap<SocketAddr, Returned>,
}

/// A returned endpoint.
#[derive(Clone, Copy, Debug)]
struct Returned {
    /// When the endpoint returned.
    since: Duration,
    /// The number of completed [`SWEEPS`].
    sweeps: usize,
    /// When the next sweep is due.
    due: Duration,
}

impl Strays {
    /// Records an Op that took effect at `now`; its virtual server was `known` before.
    pub(crate) fn record(&mut self, op: &Op, known: Option<&ObservedServer>, now: Duration) {
        match *op {
            Op::DeleteDestination(key, endpoint) if may_be_udp(&key) => {
                self.remove_endpoint((endpoint.address, endpoint.port).into(), now);
            }
            Op::DeleteService(key) if may_be_udp(&key) => {
                let endpoints = known
                    .into_iter()
                    .flat_map(|server| server.destinations.iter());
                for endpoint in endpoints {
                    self.remove_endpoint((endpoint.key.address, endpoint.key.port).into(), now);
                }
            }
            Op::AddDestination(key, destination) if may_be_udp(&key) => {
                let endpoint = (destination.key.address, destination.key.port).into();
                let gone = self.removed.remove(&endpoint);
                if gone.is_some_and(|gone| now < gone + STRAY_LIFETIME) {
                    let returned = Returned {
                        since: now,
                        sweeps: 0,
                        due: now + SWEEPS[0],
                    };
                    self.returned.insert(endpoint, returned);
                }
            }
            _ => {}
        }
    }

    fn remove_endpoint(&mut self, endpoint: SocketAddr, now: Duration) {
        // The next return of the endpoint schedules all sweeps again.
        self.returned.remove(&endpoint);
        // All Ops of a round have the same `now`, so `removed` is scanned at most once per round: a
        // round may remove thousands of endpoints.
        if self.removed.len() >= MAX_REMEMBERED && now != self.tidied {
            self.tidied = now;
            self.removed.retain(|_, gone| now < *gone + STRAY_LIFETIME);
        }
        if self.removed.len() < MAX_REMEMBERED {
            self.removed.insert(endpoint, now);
        }
    }

    /// Returns the endpoints whose strays are due for deletion at `now`.
    pub(crate) fn due(&self, now: Duration) -> BTreeSet<SocketAddr> {
        let due = self.returned.iter();
        let due = due.filter(|(_, returned)| returned.due <= now);
        due.map(|(&endpoint, _)| endpoint).collect()
    }

    /// Records that the strays of `endpoints` were deleted.
    pub(crate) fn record_sweep(&mut self, endpoints: &BTreeSet<SocketAddr>) {
        self.returned.retain(|endpoint, returned| {
            if !endpoints.contains(endpoint) {
                return true;
            }
            returned.sweeps += 1;
            let next = SWEEPS.get(returned.sweeps);
            returned.due = returned.since + next.copied().unwrap_or_default();
            next.is_some()
        });
    }

    /// Schedules the next sweep of `endpoints` at `later`, after a failed one.
    pub(crate) fn postpone(&mut self, endpoints: &BTreeSet<SocketAddr>, later: Duration) {
        for endpoint in endpoints {
            if let Some(returned) = self.returned.get_mut(endpoint) {
                returned.due = later;
            }
        }
    }

    /// Returns when the next sweep is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.returned.values().map(|returned| returned.due).min()
    }
}

/// Returns whether the virtual server may serve UDP. The key of a mark has no protocol, so it may.
fn may_be_udp(key: &ipvs::ServiceKey) -> bool {
    match key {
        ipvs::ServiceKey::Address { protocol, .. } => *protocol == ipvs::Protocol::Udp,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(protocol: ipvs::Protocol) -> ipvs::ServiceKey {
        ipvs::ServiceKey::Address {
            protocol,
            address: [10, 96, 0, 10].into(),
            port: 53,
        }
    }

    fn endpoint(last: u8) -> SocketAddr {
        ([10, 244, 0, last], 53).into()
    }

    fn remove(key: ipvs::ServiceKey, last: u8) -> Op {
        Op::DeleteDestination(key, endpoint(last).into())
    }

    fn add(key: ipvs::ServiceKey, last: u8) -> Op {
        Op::AddDestination(key, ipvs::Destination::new(endpoint(last).into(), 1))
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn record(strays: &mut Strays, op: &Op, now: Duration) {
        strays.record(op, None, now);
    }

    #[test]
    fn deleting_a_virtual_server_removes_all_its_endpoints() {
        let udp = key(ipvs::Protocol::Udp);
        let service = ipvs::Service::new(udp, "rr".parse().unwrap());
        let mut known = ObservedServer::empty(&service);
        known.record(&[&add(udp, 1), &add(udp, 2)]);
        let mut strays = Strays::default();
        strays.record(&Op::DeleteService(udp), Some(&known), SECOND);
        record(&mut strays, &add(udp, 2), 2 * SECOND);
        assert_eq!(strays.due(2 * SECOND), BTreeSet::from([endpoint(2)]));
    }

    #[test]
    fn a_returned_endpoint_is_swept_at_once_and_twice_more() {
        let udp = key(ipvs::Protocol::Udp);
        let mut strays = Strays::default();
        for op in [remove(udp, 1), add(udp, 2)] {
            record(&mut strays, &op, SECOND);
        }
        assert_eq!(strays.next_due(), None, "no endpoint returned");
        record(&mut strays, &add(udp, 1), 10 * SECOND);
        let one = BTreeSet::from([endpoint(1)]);
        for look in [10, 11, 15] {
            assert_eq!(strays.next_due(), Some(look * SECOND));
            assert!(
                strays
                    .due(look * SECOND - Duration::from_millis(1))
                    .is_empty()
            );
            assert_eq!(strays.due(look * SECOND), one);
            strays.record_sweep(&one);
        }
        assert_eq!(strays.next_due(), None);
    }

    #[test]
    fn a_failed_sweep_is_repeated_later() {
        let udp = key(ipvs::Protocol::Udp);
        let mut strays = Strays::default();
        record(&mut strays, &remove(udp, 1), SECOND);
        record(&mut strays, &add(udp, 1), SECOND);
        let one = strays.due(SECOND);
        strays.postpone(&one, 9 * SECOND);
        assert_eq!(strays.next_due(), Some(9 * SECOND));
        for _ in SWEEPS {
            // The remaining sweeps are overdue by then.
            assert_eq!(strays.due(9 * SECOND), one);
            strays.record_sweep(&one);
        }
        assert_eq!(strays.next_due(), None);
    }

    #[test]
    fn endpoints_that_return_late_or_leave_again_or_use_tcp_are_not_swept() {
        let udp = key(ipvs::Protocol::Udp);
        let tcp = key(ipvs::Protocol::Tcp);
        let mut strays = Strays::default();
        for op in [remove(udp, 1), remove(udp, 2), remove(tcp, 3)] {
            record(&mut strays, &op, SECOND);
        }
        record(&mut strays, &add(udp, 2), 2 * SECOND);
        record(&mut strays, &remove(udp, 2), 2 * SECOND);
        record(&mut strays, &add(tcp, 3), 2 * SECOND);
        record(&mut strays, &add(udp, 1), 61 * SECOND);
        assert_eq!(strays.next_due(), None);
    }

    #[test]
    fn the_number_of_remembered_endpoints_is_limited() {
        let udp = key(ipvs::Protocol::Udp);
        let mut strays = Strays::default();
        let go = |strays: &mut Strays, count, now| {
            for number in 0..count {
                let address: [u8; 4] = u32::to_be_bytes(number);
                let endpoint: SocketAddr = (address, 53).into();
                record(strays, &Op::DeleteDestination(udp, endpoint.into()), now);
            }
        };
        go(&mut strays, 5_000, SECOND);
        assert_eq!(strays.removed.len(), MAX_REMEMBERED);
        go(&mut strays, 10, 100 * SECOND);
        assert_eq!(strays.removed.len(), 10, "the others expired");
    }
}
