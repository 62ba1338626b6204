//! Servers grouped by weight.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::kernel::wrr::gcd;

/// The slots of the servers ([`ServerId::index`](crate::ServerId::index)), grouped by weight above 0.
///
/// # Cost
/// A change takes O(log n). When the last server of a weight is removed, the greatest common divisor is
/// computed again. That reads groups only until the result equals the old divisor.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    /// The first member of each group.
    groups: BTreeMap<i32, u32>,
    /// The members, by slot.
    members: Vec<Member>,
    /// The greatest common divisor of all weights; 0 if there are none.
    divisor: i32,
}

/// A member of the doubly linked list of its weight.
#[derive(Clone, Copy, Debug)]
struct Member {
    weight: i32,
    previous: u32,
    next: u32,
}

/// No member.
const NIL: u32 = u32::MAX;

const OUTSIDE: Member = Member {
    weight: 0,
    previous: NIL,
    next: NIL,
};

impl Weights {
    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.members.clear();
        self.divisor = 0;
    }

    /// Returns the greatest common divisor of all weights; 0 if there are none.
    pub(super) fn divisor(&self) -> i32 {
        self.divisor
    }

    /// Returns the greatest weight; 0 if there is none.
    pub(super) fn greatest(&self) -> i32 {
        self.groups
            .last_key_value()
            .map_or(0, |(&weight, _)| weight)
    }

    /// Returns the greatest weight below `limit`; 0 if there is none.
    pub(super) fn greatest_below(&self, limit: i32) -> i32 {
        let below = (Bound::Unbounded, Bound::Excluded(limit));
        self.groups
            .range(below)
            .next_back()
            .map_or(0, |(&weight, _)| weight)
    }

    /// Returns the slots of this weight in no particular order.
    pub(super) fn group(&self, weight: i32) -> impl Iterator<Item = u32> {
        let first = self.groups.get(&weight).copied().unwrap_or(NIL);
        let member = |slot: u32| (slot != NIL).then_some(slot);
        std::iter::successors(member(first), move |&slot| {
            member(self.members[slot as usize].next)
        })
    }

    /// Sets the weight of a slot; weight 0 removes the slot.
    pub(super) fn set(&mut self, slot: u32, weight: i32) {
        let index = slot as usize;
        if index >= self.members.len() {
            self.members.resize(index + 1, OUTSIDE);
        }
        if self.members[index].weight == weight {
            return;
        }
        self.leave(slot);
        if weight == 0 {
            return;
        }
        // At the head of its group, which takes constant time: the order in a group has no meaning.
        let next = self.groups.insert(weight, slot).unwrap_or(NIL);
        self.members[index] = Member {
            weight,
            previous: NIL,
            next,
        };
        if let Some(member) = self.members.get_mut(next as usize) {
            member.previous = slot;
        }
        // A new weight can only lower the divisor. Only a removal needs all weights.
        self.divisor = gcd(self.divisor, weight);
    }

    fn leave(&mut self, slot: u32) {
        let left = std::mem::replace(&mut self.members[slot as usize], OUTSIDE);
        if let Some(member) = self.members.get_mut(left.next as usize) {
            member.previous = left.previous;
        }
        if let Some(member) = self.members.get_mut(left.previous as usize) {
            member.next = left.next;
        } else if left.next != NIL {
            self.groups.insert(left.weight, left.next);
        } else if self.groups.remove(&left.weight).is_some() {
            self.divide_again();
        }
    }

    /// Computes the divisor after a weight disappeared: it is the old one or a multiple of it.
    fn divide_again(&mut self) {
        let least = std::mem::replace(&mut self.divisor, 0);
        for &weight in self.groups.keys() {
            self.divisor = gcd(self.divisor, weight);
            if self.divisor == least {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_divisor_follow_every_change() {
        let mut weights = Weights::default();
        let mut plain = [0_i32; 20];
        let mut random = 1_u64;
        for _ in 0..5_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let slot = (random >> 33) % 20;
            let weight = [0, 6, 12, 15, 30, 7][(random >> 50) as usize % 6];
            plain[slot as usize] = weight;
            weights.set(u32::try_from(slot).unwrap(), weight);
            assert_eq!(weights.divisor(), plain.into_iter().fold(0, gcd));
            assert_eq!(Some(weights.greatest()), plain.into_iter().max());
            let mut group: Vec<u32> = weights.group(12).collect();
            group.sort_unstable();
            let expected: Vec<u32> = (0..20).filter(|&slot| plain[slot as usize] == 12).collect();
            assert_eq!(group, expected);
            let below = plain.into_iter().filter(|&weight| weight < 12).max();
            assert_eq!(weights.greatest_below(12), below.unwrap_or(0));
        }
    }
}
