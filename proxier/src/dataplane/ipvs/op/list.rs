//! The Ops of a round, in little memory.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipvs_netlink as ipvs;

use super::{Op, Stage};
use crate::dataplane::ipvs::definition::ServerDefinition;
use crate::dataplane::ipvs::destinations::planned;
use crate::plan::Endpoints;

/// The Ops of a round, in order.
///
/// Those of a start take little memory, because they share that of the plan. At a start with 10,000 x 10, a
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
    /// The addition of a virtual server. Most have the definition of the one before, and share its memory.
    Service(ipvs::ServiceKey, Arc<ServerDefinition>),
    /// Additions of the destinations of these endpoints, of which there is at least one.
    Destinations(ipvs::ServiceKey, Endpoints),
    /// The addition of an address with its source.
    Address(IpAddr, Option<IpAddr>),
    /// Any other Op. Boxed, because the groups of a start are of the other kinds, and half as large.
    Other(Box<Op>),
}

impl Ops {
    /// Appends an Op.
    pub fn push(&mut self, op: Op) {
        self.count += 1;
        self.groups.push(match op {
            Op::AddService(service) => self.service(service.key, ServerDefinition::of(&service)),
            Op::AddAddress(address, source) => OpGroup::Address(address, source),
            other => OpGroup::Other(Box::new(other)),
        });
    }

    /// Appends the addition of a virtual server and its destinations.
    ///
    /// [`Ops::sort`] keeps the destinations together. So no other Op may add a destination to `key`.
    pub fn push_server(
        &mut self,
        key: ipvs::ServiceKey,
        definition: ServerDefinition,
        endpoints: &Endpoints,
    ) {
        self.count += 1 + endpoints.len();
        let group = self.service(key, definition);
        self.groups.push(group);
        if !endpoints.is_empty() {
            let group = OpGroup::Destinations(key, endpoints.clone());
            self.groups.push(group);
        }
    }

    fn service(&self, key: ipvs::ServiceKey, definition: ServerDefinition) -> OpGroup {
        // The last one may be that of the destinations.
        let mut last = self.groups.iter().rev().take(2);
        let shared = last.find_map(|group| match group {
            OpGroup::Service(_, known) if **known == definition => Some(known.clone()),
            _ => None,
        });
        OpGroup::Service(key, shared.unwrap_or_else(|| Arc::new(definition)))
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
            OpGroup::Service(key, _) => Some(*key),
            _ => None,
        })
    }

    /// Removes the Ops for which `keep` is false. Of the destinations of a new virtual server, it gets the
    /// first only.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Op) -> bool) {
        self.groups
            .retain(|group| group.ops().next().is_none_or(|op| keep(&op)));
        self.count = self.groups.iter().map(OpGroup::count).sum();
    }

    /// Sorts by stage and key; the Ops for which `is_first` is true come first. Virtual servers are deleted in the
    /// reverse order.
    ///
    /// For some minutes, the kernel keeps the destinations of deleted virtual servers, and searches them for each new
    /// destination, from the newest on (`linux/revival.rs`). A start after a `cleanup` adds destinations in order of the
    /// keys, so that each search ends at once.
    pub(crate) fn sort(&mut self, is_first: impl Fn(Stage, Option<IpAddr>) -> bool) {
        let rank = |group: &OpGroup| {
            let stage = group.stage();
            (!is_first(stage, group.address()), stage)
        };
        // A comparison of two plans appends the Ops of each stage in order of the keys, so a stable sort by stage
        // mostly is all. It sorts small numbers: a stable sort of the groups would allocate memory for as many.
        self.groups.sort_by_cached_key(rank);
        let key = |group: &OpGroup| {
            let address = group.address();
            (group.service_key(), address, group.destination_key())
        };
        for stage in self
            .groups
            .chunk_by_mut(|one, next| rank(one) == rank(next))
        {
            // Only deletions of one address in several forms have the same key, and any order is right for them.
            if !stage.is_sorted_by_key(key) {
                stage.sort_unstable_by_key(key);
            }
            let is_removal = |group: &OpGroup| group.stage() == Stage::RemovedServices;
            if stage.first().is_some_and(is_removal) {
                stage.reverse();
            }
        }
    }

    /// Removes and returns the additions of virtual servers of firewall marks, with their destinations.
    pub(crate) fn take_new_marks(&mut self) -> Self {
        let is_of_mark = |group: &mut OpGroup| match group {
            OpGroup::Service(key, _) | OpGroup::Destinations(key, _) => key.address().is_none(),
            OpGroup::Address(..) | OpGroup::Other(_) => false,
        };
        let groups: Vec<OpGroup> = self.groups.extract_if(.., is_of_mark).collect();
        let count = groups.iter().map(OpGroup::count).sum();
        self.count -= count;
        Self { groups, count }
    }

    /// Appends all Ops of `other`.
    pub(crate) fn append(&mut self, mut other: Self) {
        // Nearly always the only ones.
        if self.groups.is_empty() {
            *self = other;
            return;
        }
        self.groups.append(&mut other.groups);
        self.count += other.count;
    }

    /// Passes the Ops to `take` in parts of at most `most`, which use the same memory one after another.
    pub(crate) fn for_each_part(&self, most: usize, mut take: impl FnMut(&[Op])) {
        let mut part = Vec::with_capacity(self.count.min(most));
        // Not `next`, which would move each Op through the iterators that this one is made of.
        self.iter().for_each(|op| {
            part.push(op);
            if part.len() == most {
                take(&part);
                part.clear();
            }
        });
        if !part.is_empty() {
            take(&part);
        }
    }
}

impl OpGroup {
    fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        let (one, all) = match self {
            Self::Service(key, definition) => (Some(Op::AddService(definition.at(*key))), None),
            Self::Destinations(key, all) => (None, Some((key, all))),
            Self::Address(address, source) => (Some(Op::AddAddress(*address, *source)), None),
            Self::Other(op) => (Some(**op), None),
        };
        let all = all.into_iter();
        let all =
            all.flat_map(|(key, all)| all.iter().map(|it| Op::AddDestination(*key, planned(it))));
        one.into_iter().chain(all)
    }

    fn count(&self) -> usize {
        match self {
            Self::Destinations(_, all) => all.len(),
            _ => 1,
        }
    }

    fn stage(&self) -> Stage {
        match self {
            Self::Service(..) => Stage::Services,
            Self::Destinations(..) => Stage::Destinations,
            Self::Address(..) => Stage::Addresses,
            Self::Other(op) => op.stage(),
        }
    }

    fn service_key(&self) -> Option<ipvs::ServiceKey> {
        match self {
            Self::Service(key, _) | Self::Destinations(key, _) => Some(*key),
            Self::Address(..) => None,
            Self::Other(op) => op.service_key(),
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Service(key, _) | Self::Destinations(key, _) => key.address(),
            Self::Address(address, _) => Some(*address),
            Self::Other(op) => op.address(),
        }
    }

    fn destination_key(&self) -> Option<ipvs::DestinationKey> {
        match self {
            Self::Other(op) => op.destination_key(),
            _ => None,
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
    use crate::plan::SelectedEndpoint;

    fn key(number: u8) -> ipvs::ServiceKey {
        ipvs::ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, number].into(),
            port: 80,
        }
    }

    fn endpoint(number: u8) -> SelectedEndpoint {
        SelectedEndpoint {
            address: [10, 128, 0, number].into(),
            port: 8080,
            weight: 1,
            most_connections: 0,
        }
    }

    #[test]
    fn destinations_of_new_virtual_servers_are_ops_like_others() {
        let add = |server, number| Op::AddDestination(key(server), planned(&endpoint(number)));
        let mut ops = Ops::default();
        ops.push(Op::AddAddress([10, 96, 0, 1].into(), None));
        let all: Endpoints = (1..=3).map(endpoint).collect();
        let service = |number| ipvs::Service::new(key(number), "rr".parse().unwrap());
        let definition = ServerDefinition::of(&service(2));
        ops.push_server(key(3), definition, &Endpoints::default());
        ops.push_server(key(2), definition, &all);
        ops.push(add(1, 9));
        ops.sort(|_, _| false);
        let sorted = [
            Op::AddService(service(2)),
            Op::AddService(service(3)),
            add(1, 9),
            add(2, 1),
            add(2, 2),
            add(2, 3),
            Op::AddAddress([10, 96, 0, 1].into(), None),
        ];
        assert_eq!(ops, sorted);
        assert_eq!(ops.len(), 7);
        for most in 1..=8 {
            let mut parts = Vec::new();
            ops.for_each_part(most, |part| parts.push(part.to_vec()));
            assert_eq!(parts.concat(), sorted);
            assert!(parts.iter().all(|part| part.len() <= most));
        }
        ops.retain(|op| op.service_key() != Some(key(2)));
        assert_eq!(ops, [sorted[1], sorted[2], sorted[6]]);
        assert_eq!(ops.len(), 3);
    }

    #[test]
    fn virtual_servers_are_deleted_in_the_reverse_order_of_their_addition() {
        let add = |number| Op::AddService(ipvs::Service::new(key(number), "rr".parse().unwrap()));
        let delete = |number| Op::DeleteService(key(number));
        let mut ops: Ops = [4, 1, 3].map(delete).into_iter().collect();
        ops.extend([6, 5].map(add));
        let sorted = [add(5), add(6), delete(4), delete(3), delete(1)];
        for _ in 0..2 {
            ops.sort(|_, _| false);
            assert_eq!(ops, sorted);
        }
    }
}
