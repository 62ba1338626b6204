//! The Ops of a round, in little memory.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use super::{Op, Stage};

/// The Ops of a round, in order.
///
/// The destinations of a new virtual server share the memory of the plan. At a start with 10,000 x 10, a
/// vector of all 120,001 Ops would be most of the peak of memory.
#[derive(Clone, Default)]
pub struct Ops {
    groups: Vec<OpGroup>,
    /// The number of Ops.
    count: usize,
}

/// One Op, or several that follow each other.
#[derive(Clone, Debug)]
enum OpGroup {
    One(Op),
    /// Additions of these destinations, of which there is at least one.
    Destinations(ipvs::ServiceKey, Arc<[ipvs::Destination]>),
}

impl Ops {
    /// Appends an Op.
    pub fn push(&mut self, op: Op) {
        self.groups.push(OpGroup::One(op));
        self.count += 1;
    }

    /// Appends the additions of `destinations` to the virtual server `key`.
    ///
    /// [`Ops::sort`] keeps them together. So no other Op may add a destination to `key`.
    pub fn push_destinations(
        &mut self,
        key: ipvs::ServiceKey,
        destinations: &Arc<[ipvs::Destination]>,
    ) {
        if !destinations.is_empty() {
            self.count += destinations.len();
            let group = OpGroup::Destinations(key, destinations.clone());
            self.groups.push(group);
        }
    }

    /// Returns the number of Ops.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there is no Op.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns every Op, in order.
    pub fn iter(&self) -> impl Iterator<Item = Op> + '_ {
        self.groups.iter().flat_map(OpGroup::ops)
    }

    /// Returns the virtual servers that the Ops create, in order.
    pub(crate) fn created(&self) -> impl Iterator<Item = ipvs::ServiceKey> + '_ {
        self.groups.iter().filter_map(|group| match group {
            OpGroup::One(Op::AddService(service)) => Some(service.key),
            _ => None,
        })
    }

    /// Removes the Ops for which `keep` is false. Of the destinations of a new virtual server, it gets the
    /// first only.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Op) -> bool) {
        self.groups.retain(|group| match group {
            OpGroup::One(op) => keep(op),
            OpGroup::Destinations(..) => group.ops().next().is_none_or(|op| keep(&op)),
        });
        self.count = self.groups.iter().map(OpGroup::count).sum();
    }

    /// Sorts by stage and key; the Ops for which `is_first` is true come first.
    pub(crate) fn sort(&mut self, is_first: impl Fn(Stage, Option<IpAddr>) -> bool) {
        // No two groups have the same key. A stable sort would give the same order, and allocate memory for
        // half of the groups.
        self.groups.sort_unstable_by_key(|group| {
            let (stage, address) = (group.stage(), group.address());
            let key = (group.service_key(), address, group.destination_key());
            (!is_first(stage, address), stage, key)
        });
    }

    /// Returns the Ops in parts of at most `most`.
    pub(crate) fn parts(&self, most: usize) -> impl Iterator<Item = Vec<Op>> + '_ {
        let mut ops = self.iter();
        let mut left = self.count;
        std::iter::from_fn(move || {
            let mut part = Vec::with_capacity(left.min(most));
            part.extend(ops.by_ref().take(most));
            left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }
}

impl OpGroup {
    fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        let (one, all) = match self {
            Self::One(op) => (Some(*op), None),
            Self::Destinations(key, all) => (None, Some((key, all))),
        };
        let all = all.into_iter();
        let all = all.flat_map(|(key, all)| all.iter().map(|&it| Op::AddDestination(*key, it)));
        one.into_iter().chain(all)
    }

    fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Destinations(_, all) => all.len(),
        }
    }

    fn stage(&self) -> Stage {
        match self {
            Self::One(op) => op.stage(),
            Self::Destinations(..) => Stage::Destinations,
        }
    }

    fn service_key(&self) -> Option<ipvs::ServiceKey> {
        match self {
            Self::One(op) => op.service_key(),
            Self::Destinations(key, _) => Some(*key),
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::One(op) => op.address(),
            Self::Destinations(key, _) => key.address(),
        }
    }

    fn destination_key(&self) -> Option<ipvs::DestinationKey> {
        match self {
            Self::One(op) => op.destination_key(),
            Self::Destinations(..) => None,
        }
    }
}

impl Extend<Op> for Ops {
    fn extend<I: IntoIterator<Item = Op>>(&mut self, ops: I) {
        ops.into_iter().for_each(|op| self.push(op));
    }
}

impl FromIterator<Op> for Ops {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Self {
        let mut all = Self::default();
        all.extend(ops);
        all
    }
}

impl<const N: usize> PartialEq<[Op; N]> for Ops {
    fn eq(&self, other: &[Op; N]) -> bool {
        self.iter().eq(other.iter().copied())
    }
}

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> ipvs::ServiceKey {
        ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, number].into(),
            port: 80,
        }
    }

    fn destination(number: u8) -> ipvs::Destination {
        let address: std::net::SocketAddr = ([10, 128, 0, number], 8080).into();
        ipvs::Destination::new(address.into(), 1)
    }

    #[test]
    fn destinations_of_new_virtual_servers_are_ops_like_others() {
        let add = |server, number| Op::AddDestination(key(server), destination(number));
        let mut ops = Ops::default();
        ops.push(Op::AddAddress([10, 96, 0, 1].into(), None));
        let all: Arc<[_]> = (1..=3).map(destination).collect();
        ops.push_destinations(key(2), &all);
        ops.push_destinations(key(3), &Arc::default());
        ops.push(add(1, 9));
        ops.sort(|_, _| false);
        let sorted = [
            add(1, 9),
            add(2, 1),
            add(2, 2),
            add(2, 3),
            Op::AddAddress([10, 96, 0, 1].into(), None),
        ];
        assert_eq!(ops, sorted);
        assert_eq!(ops.len(), 5);
        for most in 1..=6 {
            let parts: Vec<Vec<Op>> = ops.parts(most).collect();
            assert_eq!(parts.concat(), sorted);
            assert!(parts.iter().all(|part| part.len() <= most));
        }
        ops.retain(|op| op.service_key() != Some(key(2)));
        assert_eq!(ops, [sorted[0], sorted[4]]);
        assert_eq!(ops.len(), 2);
    }
}
