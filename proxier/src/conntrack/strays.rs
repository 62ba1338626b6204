//! Endpoints that come back, and answers of theirs that nobody expects any more.
//!
//! When an endpoint goes, its flows are deleted. An answer that is on its way then begins a flow of
//! its own, from the endpoint to the client: a stray. That does no harm unless the endpoint comes
//! back within the half minute that the stray lives. New flows from the client's port to the endpoint
//! then have the same tuple, and the kernel drops their packets (`__nf_conntrack_confirm`). So strays
//! of an endpoint that comes back are deleted, and looked for again while answers may still be late.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ipvs_netlink as ipvs;

use crate::observed::Observed;
use crate::op::Op;

/// How long after it has gone the strays of an endpoint may be alive: for the time of its slowest
/// answers, and then for that of a flow without an answer (`nf_conntrack_udp_timeout`, 30 s).
const REMEMBERED: Duration = Duration::from_secs(60);

/// So many endpoints are remembered at most. Those that go beyond that are not looked for.
const MOST: usize = 4_096;

/// When strays are looked for after an endpoint came back.
const LOOKS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Which UDP endpoints have gone a short while ago, and which of them are back.
#[derive(Clone, Debug, Default)]
pub struct Strays {
    gone: BTreeMap<SocketAddr, Duration>,
    /// When those were dropped last whose strays have died.
    tidied: Duration,
    back: BTreeMap<SocketAddr, Back>,
}

/// An endpoint that is back.
#[derive(Clone, Copy, Debug)]
struct Back {
    since: Duration,
    /// How many [`LOOKS`] are done.
    looks: usize,
    /// When to look next.
    due: Duration,
}

impl Strays {
    /// Draws the conclusions of an Op that took effect at `now`; `known` is what was there before.
    pub fn learn(&mut self, op: &Op, known: &Observed, now: Duration) {
        match *op {
            Op::DeleteDestination(key, endpoint) if may_be_udp(&key) => {
                self.goes((endpoint.address, endpoint.port).into(), now);
            }
            Op::DeleteService(key) if may_be_udp(&key) => {
                let server = known.virtual_servers.get(&key);
                let endpoints = server.iter().flat_map(|server| &*server.destinations);
                for endpoint in endpoints {
                    self.goes((endpoint.key.address, endpoint.key.port).into(), now);
                }
            }
            Op::AddDestination(key, destination) if may_be_udp(&key) => {
                let endpoint = (destination.key.address, destination.key.port).into();
                let gone = self.gone.remove(&endpoint);
                if gone.is_some_and(|gone| now < gone + REMEMBERED) {
                    let back = Back {
                        since: now,
                        looks: 0,
                        due: now + LOOKS[0],
                    };
                    self.back.insert(endpoint, back);
                }
            }
            _ => {}
        }
    }

    fn goes(&mut self, endpoint: SocketAddr, now: Duration) {
        self.back.remove(&endpoint);
        if self.gone.len() >= MOST && now != self.tidied {
            self.tidied = now;
            self.gone.retain(|_, gone| now < *gone + REMEMBERED);
        }
        if self.gone.len() < MOST {
            self.gone.insert(endpoint, now);
        }
    }

    /// The endpoints whose strays are to be looked for at `now`.
    pub fn due(&self, now: Duration) -> BTreeSet<SocketAddr> {
        let due = self.back.iter();
        let due = due.filter(|(_, back)| back.due <= now);
        due.map(|(&endpoint, _)| endpoint).collect()
    }

    /// The strays of these endpoints have been deleted.
    pub fn looked(&mut self, endpoints: &BTreeSet<SocketAddr>) {
        self.back.retain(|endpoint, back| {
            if !endpoints.contains(endpoint) {
                return true;
            }
            back.looks += 1;
            let next = LOOKS.get(back.looks);
            back.due = back.since + next.copied().unwrap_or_default();
            next.is_some()
        });
    }

    /// The strays of these endpoints could not be deleted; they are looked for again `later`.
    pub fn put_off(&mut self, endpoints: &BTreeSet<SocketAddr>, later: Duration) {
        for endpoint in endpoints {
            if let Some(back) = self.back.get_mut(endpoint) {
                back.due = later;
            }
        }
    }

    /// When strays are to be looked for next.
    pub fn next_due(&self) -> Option<Duration> {
        self.back.values().map(|back| back.due).min()
    }
}

/// A virtual server of a mark may be of any protocol.
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

    fn goes(key: ipvs::ServiceKey, last: u8) -> Op {
        Op::DeleteDestination(key, endpoint(last).into())
    }

    fn comes(key: ipvs::ServiceKey, last: u8) -> Op {
        Op::AddDestination(key, ipvs::Destination::new(endpoint(last).into(), 1))
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn learn(strays: &mut Strays, op: &Op, now: Duration) {
        strays.learn(op, &Observed::default(), now);
    }

    #[test]
    fn with_a_service_all_of_its_endpoints_go() {
        let udp = key(ipvs::Protocol::Udp);
        let mut known = Observed::default();
        let service = ipvs::Service::new(udp, "rr".parse().unwrap());
        for op in [Op::AddService(service), comes(udp, 1), comes(udp, 2)] {
            known.record(&op);
        }
        let mut strays = Strays::default();
        strays.learn(&Op::DeleteService(udp), &known, SECOND);
        learn(&mut strays, &comes(udp, 2), 2 * SECOND);
        assert_eq!(strays.due(2 * SECOND), BTreeSet::from([endpoint(2)]));
    }

    #[test]
    fn who_comes_back_is_looked_at_at_once_and_again() {
        let udp = key(ipvs::Protocol::Udp);
        let mut strays = Strays::default();
        for op in [goes(udp, 1), comes(udp, 2)] {
            learn(&mut strays, &op, SECOND);
        }
        assert_eq!(strays.next_due(), None, "nobody is back");
        learn(&mut strays, &comes(udp, 1), 10 * SECOND);
        let one = BTreeSet::from([endpoint(1)]);
        for look in [10, 11, 15] {
            assert_eq!(strays.next_due(), Some(look * SECOND));
            assert!(
                strays
                    .due(look * SECOND - Duration::from_millis(1))
                    .is_empty()
            );
            assert_eq!(strays.due(look * SECOND), one);
            strays.looked(&one);
        }
        assert_eq!(strays.next_due(), None);
    }

    #[test]
    fn a_look_that_failed_is_made_later() {
        let udp = key(ipvs::Protocol::Udp);
        let mut strays = Strays::default();
        learn(&mut strays, &goes(udp, 1), SECOND);
        learn(&mut strays, &comes(udp, 1), SECOND);
        let one = strays.due(SECOND);
        strays.put_off(&one, 9 * SECOND);
        assert_eq!(strays.next_due(), Some(9 * SECOND));
        for _ in LOOKS {
            // The others are due at once then.
            assert_eq!(strays.due(9 * SECOND), one);
            strays.looked(&one);
        }
        assert_eq!(strays.next_due(), None);
    }

    #[test]
    fn nobody_is_looked_at_who_was_away_for_long_or_goes_again_or_speaks_tcp() {
        let udp = key(ipvs::Protocol::Udp);
        let tcp = key(ipvs::Protocol::Tcp);
        let mut strays = Strays::default();
        for op in [goes(udp, 1), goes(udp, 2), goes(tcp, 3)] {
            learn(&mut strays, &op, SECOND);
        }
        learn(&mut strays, &comes(udp, 2), 2 * SECOND);
        learn(&mut strays, &goes(udp, 2), 2 * SECOND);
        learn(&mut strays, &comes(tcp, 3), 2 * SECOND);
        learn(&mut strays, &comes(udp, 1), 61 * SECOND);
        assert_eq!(strays.next_due(), None);
    }

    #[test]
    fn no_more_are_remembered_than_that() {
        let udp = key(ipvs::Protocol::Udp);
        let mut strays = Strays::default();
        let go = |strays: &mut Strays, count, now| {
            for number in 0..count {
                let address: [u8; 4] = u32::to_be_bytes(number);
                let endpoint: SocketAddr = (address, 53).into();
                learn(strays, &Op::DeleteDestination(udp, endpoint.into()), now);
            }
        };
        go(&mut strays, 5_000, SECOND);
        assert_eq!(strays.gone.len(), MOST);
        go(&mut strays, 10, 100 * SECOND);
        assert_eq!(strays.gone.len(), 10, "others are past it");
    }
}
