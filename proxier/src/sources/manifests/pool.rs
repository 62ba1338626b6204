//! Allocation of numbers that rarely changes when claims are added or removed.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;

use net::stable_hash::{fnv1a, mix};

/// The number of preferred numbers that a claim tries. After them it gets the next free number. In a pool that
/// is half full, one claim in four billion needs that.
const ROUNDS: u64 = 32;

/// Numbers that are allocated by hashing the names of claims.
///
/// Nothing is stored between runs, so the result of [`Pool::assign`] depends only on the names of the claims and the
/// reserved numbers. Each claim has a sequence of preferred numbers. First all claims try their first
/// number, in the order of their names. Then claims without a number try their second one, and so on. A new
/// or removed claim changes the number of another claim only if both prefer the same number, directly or
/// through a third claim. In a pool that is a third full, a quarter more claims move one claim in ten. So a running
/// process keeps the numbers of present claims ([`Pool::assign_again`]), and a number that must never change must be
/// written into the manifest.
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
pub(super) struct Numbers(BTreeMap<Box<str>, u64>);

/// What a claim got from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    /// The number; `None` if the pool is exhausted.
    pub(super) number: Option<u64>,
    /// What it had before, if it had a number.
    before: Option<u64>,
    /// What a new process allocates for the same claims.
    in_new_process: Option<u64>,
}

impl Assigned {
    /// Returns what the operator must know of the number, which `show` prints; `None` if it is the same in every run.
    pub(super) fn remark<T: Display>(&self, show: impl Fn(u64) -> T) -> Option<String> {
        let number = self.number?;
        match self.before {
            Some(before) if before != number => Some(format!(
                "{} was allocated before, but is specified now; {} is allocated instead",
                show(before),
                show(number)
            )),
            _ if self.in_new_process != self.number => Some(format!(
                "{} is in use until a restart, which allocates {}; specify it to keep it",
                show(number),
                self.in_new_process
                    .map_or_else(|| "none".to_owned(), |it| show(it).to_string())
            )),
            _ => None,
        }
    }
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
    pub(super) fn assign_again(
        &mut self,
        claims: &[impl AsRef<str>],
        numbers: &mut Numbers,
        are_all: bool,
    ) -> Vec<Assigned> {
        let in_new_process = self.clone().assign(claims);
        let before = |claim: &str| numbers.0.get(claim).copied();
        let kept = claims.iter().map(|claim| {
            let number = before(claim.as_ref())?;
            self.taken.insert(number).then_some(number)
        });
        let kept: Vec<Option<u64>> = kept.collect();
        if !are_all {
            self.taken.extend(numbers.0.values());
        }
        let is_new = |&claim: &usize| kept[claim].is_none();
        let new: Vec<usize> = (0..claims.len()).filter(is_new).collect();
        let new_names: Vec<&str> = new.iter().map(|&claim| claims[claim].as_ref()).collect();
        let mut all = kept;
        for (&claim, number) in new.iter().zip(self.assign(&new_names)) {
            all[claim] = number;
        }
        let assigned = claims.iter().zip(all).zip(in_new_process);
        let assigned = assigned.map(|((claim, number), in_new_process)| Assigned {
            number,
            before: before(claim.as_ref()),
            in_new_process,
        });
        let assigned: Vec<Assigned> = assigned.collect();
        if are_all {
            numbers.0.clear();
        }
        let claims = claims.iter().map(|claim| claim.as_ref().into());
        let present = claims.zip(assigned.iter().map(|it| it.number));
        let present = present.filter_map(|(claim, number)| Some((claim, number?)));
        numbers.0.extend(present);
        assigned
    }

    /// Returns a number for each claim, in the order of `claims`; `None` if the pool is exhausted.
    fn assign(&mut self, claims: &[impl AsRef<str>]) -> Vec<Option<u64>> {
        let name = |claim: usize| claims[claim].as_ref();
        let mut numbers = vec![None; claims.len()];
        let mut waiting: Vec<usize> = (0..claims.len()).collect();
        // By name, so that the order of the files does not change any number.
        waiting.sort_by_key(|&claim| name(claim));
        let high = self.size - self.low;
        for round in 0..ROUNDS {
            if high == 0 {
                break;
            }
            waiting.retain(|&claim| {
                let number = self.low + hash(name(claim), round) % high;
                let is_free = self.taken.insert(number);
                if is_free {
                    numbers[claim] = Some(number);
                }
                !is_free
            });
        }
        for claim in waiting {
            numbers[claim] = self.next_free(hash(name(claim), ROUNDS));
        }
        numbers
    }

    fn next_free(&mut self, hash: u64) -> Option<u64> {
        if self.taken.len() as u64 >= self.size {
            return None;
        }
        let high = self.size - self.low;
        let from = |base: u64, count: u64| {
            let start = hash.checked_rem(count).unwrap_or_default();
            (0..count).map(move |step| base + (start + step) % count)
        };
        // A linear search, but only in a nearly full pool.
        let number = from(self.low, high)
            .chain(from(0, self.low))
            .find(|n| !self.taken.contains(n))?;
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

    #[test]
    fn low_numbers_are_allocated_last_and_each_number_once() {
        let numbers = Pool::new(100, 16).assign(&names(84));
        assert!(
            numbers
                .iter()
                .all(|number| number.is_some_and(|number| number >= 16))
        );
        let numbers: HashSet<u64> = Pool::new(100, 16)
            .assign(&names(120))
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(numbers.len(), 100);
        assert_eq!(Pool::new(0, 0).assign(&names(2)), [None, None]);
        assert_eq!(
            Pool::new(8, 8).assign(&names(8)).iter().flatten().count(),
            8
        );
    }

    #[test]
    fn numbers_never_change_between_versions() {
        let numbers = Pool::new(65_534, 256).assign(&names(4));
        assert_eq!(numbers, [63_273, 57_489, 16_405, 29_750].map(Some));
    }

    #[test]
    fn a_new_claim_rarely_moves_another() {
        let names = names(100);
        let all = Pool::new(254, 16).assign(&names);
        for left_out in 0..names.len() {
            let mut fewer = names.clone();
            fewer.remove(left_out);
            let mut numbers = Pool::new(254, 16).assign(&fewer);
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
            let of_sorted = pool.clone().assign(&sorted);
            let of_shuffled = pool.assign(&shuffled);
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
