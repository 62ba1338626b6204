//! The endpoints that left and may keep their connections, each with its deadline.
//!
//! A tenant can make any number of them, because it can replace endpoints as often as it likes. So there is a limit. What is
//! forgotten loses its deadline only: its connections continue until they end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::cluster::model::ObjectName;
use crate::plan::frontend::Frontend;

/// An endpoint that left a frontend.
pub(super) type Left = (Frontend, SocketAddr);

/// How long an endpoint may keep its connections.
#[derive(Clone, Debug)]
pub(super) struct Drain {
    pub(super) until: Duration,
    /// The Service of the frontend, if it is known.
    pub(super) service: Option<ObjectName>,
    /// Whether it had connections when they were last read.
    pub(super) was_open: bool,
}

/// The drains, also by their deadlines: a round looks at the first ones only.
#[derive(Debug, Default)]
pub(super) struct Drains {
    drains: BTreeMap<Left, Drain>,
    by_deadline: BTreeMap<Duration, BTreeSet<Left>>,
}

impl Drains {
    pub(super) fn len(&self) -> usize {
        self.drains.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.drains.is_empty()
    }

    pub(super) fn contains(&self, left: &Left) -> bool {
        self.drains.contains_key(left)
    }

    /// Returns the drains of a frontend, each with its deadline.
    pub(super) fn of(&self, frontend: &Frontend) -> impl Iterator<Item = (SocketAddr, Duration)> {
        let first = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let last = SocketAddr::from((Ipv6Addr::from(u128::MAX), u16::MAX));
        let of_frontend = self.drains.range((*frontend, first)..=(*frontend, last));
        of_frontend.map(|((_, endpoint), drain)| (*endpoint, drain.until))
    }

    /// Adds a drain, in place of an earlier one of the endpoint.
    pub(super) fn insert(&mut self, left: Left, drain: Drain) {
        self.remove(&left);
        let ends = self.by_deadline.entry(drain.until).or_default();
        ends.insert(left);
        self.drains.insert(left, drain);
    }

    pub(super) fn remove(&mut self, left: &Left) {
        let Some(drain) = self.drains.remove(left) else {
            return;
        };
        if let Some(ends) = self.by_deadline.get_mut(&drain.until) {
            ends.remove(left);
            if ends.is_empty() {
                self.by_deadline.remove(&drain.until);
            }
        }
    }

    /// Returns the earliest deadline.
    pub(super) fn first_deadline(&self) -> Option<Duration> {
        self.by_deadline.keys().next().copied()
    }

    /// Returns those whose time is over at `now`.
    pub(super) fn ended(&self, now: Duration) -> impl Iterator<Item = Left> {
        let ended = self.by_deadline.range(..=now);
        ended.flat_map(|(_, ends)| ends.iter().copied())
    }

    /// Removes those whose time is over at `now`. Returns whether there were any.
    pub(super) fn remove_ended(&mut self, now: Duration) -> bool {
        let ended: Vec<Left> = self.ended(now).collect();
        ended.iter().for_each(|left| self.remove(left));
        !ended.is_empty()
    }

    /// Ends those of Services that `is_gone` names.
    pub(super) fn end(&mut self, is_gone: impl Fn(&ObjectName) -> bool, now: Duration) {
        for drain in self.drains.values_mut() {
            if drain.service.as_ref().is_some_and(&is_gone) {
                drain.until = now;
            }
        }
        self.order();
    }

    /// Keeps only those in `open`, which have connections.
    pub(super) fn keep_open(&mut self, open: &BTreeSet<Left>) {
        self.drains.retain(|left, drain| {
            drain.was_open = open.contains(left);
            drain.was_open
        });
        self.order();
    }

    /// Forgets what exceeds `limit`.
    ///
    /// Those of a namespace are forgotten only while it has more than its equal share, so one tenant cannot displace those of
    /// others. First go those without connections when they were last read, then those with the latest deadline, so
    /// a long drain time is no advantage, and what ends soon ends in time.
    pub(super) fn limit(&mut self, limit: usize) {
        if self.len() <= limit {
            return;
        }
        let mut order = BTreeMap::<_, Vec<(bool, Duration, Left)>>::new();
        for (left, drain) in &self.drains {
            let namespace = drain.service.as_ref().map(ObjectName::namespace);
            let of_namespace = order.entry(namespace).or_default();
            of_namespace.push((!drain.was_open, drain.until, *left));
        }
        // The smallest first: what they leave over is for the others.
        let mut groups: Vec<Vec<_>> = order.into_values().collect();
        groups.sort_by_key(Vec::len);
        let (mut free, mut waiting) = (limit, groups.len());
        let mut forgotten = Vec::with_capacity(self.len() - limit);
        for mut group in groups {
            let kept = group.len().min(free / waiting);
            free -= kept;
            waiting -= 1;
            group.sort_unstable();
            forgotten.extend(group.drain(kept..).map(|(.., left)| left));
        }
        for left in &forgotten {
            self.drains.remove(left);
        }
        self.order();
    }

    /// Orders all by their deadlines.
    fn order(&mut self) {
        self.by_deadline.clear();
        for (left, drain) in &self.drains {
            let ends = self.by_deadline.entry(drain.until).or_default();
            ends.insert(*left);
        }
    }
}

/// Returns a drain of the Service default/web that ends in an hour.
#[cfg(test)]
pub(super) fn example(number: u32) -> (Left, Drain) {
    (tests::left(number), tests::drain("default", 3_600))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::model::Protocol;

    pub(super) fn left(number: u32) -> Left {
        let frontend = Frontend {
            address: [10, 96, 0, 1].into(),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let address = Ipv4Addr::from(0x0a00_0000 + number);
        (frontend, SocketAddr::new(address.into(), 8080))
    }

    pub(super) fn drain(namespace: &str, until: u64) -> Drain {
        Drain {
            until: Duration::from_secs(until),
            service: Some(ObjectName::new(namespace, "web")),
            was_open: false,
        }
    }

    #[test]
    fn the_drains_of_one_namespace_do_not_displace_those_of_others() {
        let mut drains = Drains::default();
        for number in 0..1_000 {
            // The long ones are first by key.
            drains.insert(left(number), drain("greedy", 90_000 - u64::from(number)));
        }
        for number in 1_000..1_030 {
            drains.insert(left(number), drain("modest", 3_600));
        }
        drains.insert(left(2_000), drain("small", 3_600));
        let open = drains.drains.get_mut(&left(3)).unwrap();
        open.was_open = true;
        drains.limit(100);
        assert_eq!(drains.len(), 100);
        let count = |namespace: &str| {
            let all = drains.drains.values();
            let services = all.filter_map(|drain| drain.service.as_ref());
            services.filter(|it| it.namespace() == namespace).count()
        };
        assert_eq!(
            [count("small"), count("modest"), count("greedy")],
            [1, 30, 69]
        );
        // With connections, or among the 68 that end first.
        assert!(drains.contains(&left(3)) && drains.contains(&left(932)));
        assert!(!drains.contains(&left(2)) && !drains.contains(&left(931)));
        let ordered: usize = drains.by_deadline.values().map(BTreeSet::len).sum();
        assert_eq!(ordered, 100);
    }

    #[test]
    fn drains_end_in_the_order_of_their_deadlines() {
        let secs = Duration::from_secs;
        let mut drains = Drains::default();
        for (number, until) in [(1, 30), (2, 10), (3, 20), (1, 15)] {
            drains.insert(left(number), drain("default", until));
        }
        assert_eq!(drains.first_deadline(), Some(secs(10)));
        assert!(drains.ended(secs(15)).eq([left(2), left(1)]));
        assert!(drains.remove_ended(secs(15)));
        assert!(!drains.remove_ended(secs(15)));
        assert_eq!(drains.first_deadline(), Some(secs(20)));
        drains.remove(&left(3));
        assert_eq!((drains.len(), drains.first_deadline()), (0, None));
    }

    #[test]
    fn drains_of_deleted_services_end_at_once() {
        let mut drains = Drains::default();
        drains.insert(left(1), drain("gone", 3_600));
        drains.insert(left(2), drain("default", 3_600));
        drains.end(
            |service| service.namespace() == "gone",
            Duration::from_secs(5),
        );
        assert!(drains.ended(Duration::from_secs(5)).eq([left(1)]));
    }
}
