//! Allocation of numbers that rarely changes when claims are added or removed.

use std::collections::{BTreeMap, HashSet};

use net::stable_hash::{fnv1a, mix};

/// The number of preferred numbers that a claim tries before any other. In a pool that is half full, one claim in
/// four billion needs others.
const ROUNDS: u64 = 32;

/// Numbers that are allocated by hashing the names of claims.
///
/// Each claim gets the first free one of the numbers that its name prefers, in the order of the names. So the result
/// depends only on the names and the reserved numbers; a new or removed claim changes the number of another claim only
/// if both prefer the same number, directly or through a third claim. A running process keeps the numbers of present
/// claims; a number that must never change must be written into the manifest.
///
/// The lowest numbers are allocated last (KEP-3070, KEP-3668), because people choose low numbers by
/// hand.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    size: u64,
    /// How many of the lowest numbers are allocated last.
    low: u64,
    taken: HashSet<u64>,
}

/// The numbers of the claims of a pool, by the claims' names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers(BTreeMap<String, u64>);

/// What a claim got from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    /// The number; `None` if the pool is exhausted.
    pub(super) number: Option<u64>,
    /// The claim's earlier number, if it is reserved now.
    pub(super) lost: Option<u64>,
}

impl Pool {
    /// Returns a pool of the numbers 0 to `size` - 1, of which the lowest `low` are allocated last.
    pub(super) fn new(size: u64, low: u64) -> Self {
        Self {
            size,
            low: low.min(size),
            taken: HashSet::new(),
        }
    }

    /// Excludes `number` from allocation.
    pub(super) fn reserve(&mut self, number: u64) {
        if number < self.size {
            self.taken.insert(number);
        }
    }

    /// Assigns numbers to `claims` in their order. A claim keeps its number of `numbers`, unless that is reserved.
    ///
    /// `numbers` gets the new numbers. Claims that are gone lose theirs if `are_all`; otherwise they may be in an
    /// unreadable file, so their numbers are not free.
    pub(super) fn assign(
        &mut self,
        claims: &[String],
        numbers: &mut Numbers,
        are_all: bool,
    ) -> Vec<Assigned> {
        let keep = |claim: &String| {
            let before = numbers.0.get(claim).copied();
            let number = before.filter(|&number| self.taken.insert(number));
            let lost = before.filter(|_| number.is_none());
            Assigned { number, lost }
        };
        let mut assigned: Vec<Assigned> = claims.iter().map(keep).collect();
        if are_all {
            numbers.0.clear();
        } else {
            self.taken.extend(numbers.0.values());
        }
        // By name, so that the order of the files does not change any number.
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by_key(|&claim| &claims[claim]);
        for index in order {
            let claim = &claims[index];
            let number = assigned[index].number.or_else(|| self.next_free(claim));
            assigned[index].number = number;
            numbers
                .0
                .extend(number.map(|number| (claim.clone(), number)));
        }
        assigned
    }

    fn next_free(&mut self, claim: &str) -> Option<u64> {
        if self.taken.len() as u64 >= self.size {
            return None;
        }
        let high = self.size - self.low;
        let rounds = (0..ROUNDS).filter(|_| high > 0);
        let preferred = rounds.map(|round| self.low + hash(claim, round) % high);
        // The search for any free number is linear, but only in a nearly full pool.
        let number = preferred
            .chain(self.low..self.size)
            .chain(0..self.low)
            .find(|number| !self.taken.contains(number))?;
        self.taken.insert(number);
        Some(number)
    }
}

/// Stable, because another version must allocate the same numbers.
fn hash(name: &str, round: u64) -> u64 {
    mix(fnv1a(name.bytes().chain(round.to_le_bytes())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count)
            .map(|index| format!("default/service-{index}"))
            .collect()
    }

    fn assign(mut pool: Pool, claims: &[String]) -> Vec<Option<u64>> {
        let assigned = pool.assign(claims, &mut Numbers::default(), true);
        assigned.into_iter().map(|it| it.number).collect()
    }

    #[test]
    fn low_numbers_are_allocated_last_and_each_number_once() {
        let numbers = assign(Pool::new(100, 16), &names(84));
        assert!(
            numbers
                .iter()
                .all(|number| number.is_some_and(|number| number >= 16))
        );
        let numbers: HashSet<u64> = assign(Pool::new(100, 16), &names(120))
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(numbers.len(), 100);
        assert_eq!(assign(Pool::new(0, 0), &names(2)), [None, None]);
        assert_eq!(
            assign(Pool::new(8, 8), &names(8)).iter().flatten().count(),
            8
        );
    }

    #[test]
    fn numbers_never_change_between_versions() {
        let numbers = assign(Pool::new(65_534, 256), &names(4));
        assert_eq!(numbers, [63_273, 57_489, 16_405, 29_750].map(Some));
    }

    #[test]
    fn a_new_claim_rarely_moves_another() {
        let names = names(100);
        let all = assign(Pool::new(254, 16), &names);
        for left_out in 0..names.len() {
            let mut fewer = names.clone();
            fewer.remove(left_out);
            let mut numbers = assign(Pool::new(254, 16), &fewer);
            numbers.insert(left_out, all[left_out]);
            let moved = numbers
                .iter()
                .zip(&all)
                .filter(|(now, then)| now != then)
                .count();
            assert!(moved <= 3, "{moved} of 100 moved");
        }
    }

    proptest! {
        #[test]
        fn the_order_of_claims_does_not_matter(
            (size, low, sorted, shuffled) in (1..400_u64, 0..100_u64, 0..300_usize)
                .prop_flat_map(|(size, low, count)| {
                    let names = names(count);
                    (Just(size), Just(low), Just(names.clone()), Just(names).prop_shuffle())
                }),
            reserved in proptest::collection::vec(0..400_u64, 0..20),
        ) {
            let mut pool = Pool::new(size, low);
            reserved.iter().for_each(|&number| pool.reserve(number));
            let of_sorted = assign(pool.clone(), &sorted);
            let of_shuffled = assign(pool, &shuffled);
            for (name, number) in shuffled.iter().zip(&of_shuffled) {
                let index = sorted.iter().position(|other| other == name).unwrap();
                prop_assert_eq!(of_sorted[index], *number);
            }
            let given: Vec<u64> = of_sorted.into_iter().flatten().collect();
            let distinct: HashSet<u64> = given.iter().copied().collect();
            prop_assert_eq!(given.len(), distinct.len());
            prop_assert!(given.iter().all(|number| *number < size && !reserved.contains(number)));
        }
    }
}
