//! Giving out numbers so that everybody keeps theirs.

use std::collections::HashSet;

/// How often a claim may be turned away before it takes whatever is free next.
const ROUNDS: u64 = 32;

/// Numbers that are given to claims by hashing the claims' names.
///
/// There is no memory of what was given out before, so the result depends on nothing but the names
/// of the claims and the numbers that were reserved. Every claim has a row of favourite numbers;
/// first all claims try their first, in the order of their names, then those that were turned away
/// their second, and so on. So a claim that is added or withdrawn moves another one only when both
/// like the same number best, or when the other had been turned away before. That is rare until the
/// pool is crowded, but it cannot be excluded: what must never move has to be written down.
///
/// The lowest numbers are given out last, when all others are taken (KEP-3070, KEP-3668): people
/// choose low numbers by hand.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    size: u64,
    /// How many of the lowest numbers are given out last.
    low: u64,
    taken: HashSet<u64>,
}

impl Pool {
    /// The numbers from 0 to `size` - 1, of which the lowest `low` are given out last.
    pub(super) fn new(size: u64, low: u64) -> Self {
        Self {
            size,
            low: low.min(size),
            taken: HashSet::new(),
        }
    }

    /// Keeps `number` from being given out.
    pub(super) fn reserve(&mut self, number: u64) {
        if number < self.size {
            self.taken.insert(number);
        }
    }

    /// A number for every claim, in the order of `names`; `None` for those that came too late.
    pub(super) fn assign(&mut self, names: &[String]) -> Vec<Option<u64>> {
        let mut numbers = vec![None; names.len()];
        let mut waiting: Vec<usize> = (0..names.len()).collect();
        waiting.sort_by_key(|&claim| &names[claim]);
        let high = self.size - self.low;
        for round in 0..ROUNDS {
            if high == 0 {
                break;
            }
            waiting.retain(|&claim| {
                let number = self.low + hash(&names[claim], round) % high;
                let is_free = self.taken.insert(number);
                if is_free {
                    numbers[claim] = Some(number);
                }
                !is_free
            });
        }
        for claim in waiting {
            numbers[claim] = self.next_free(hash(&names[claim], ROUNDS));
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
        let number = from(self.low, high)
            .chain(from(0, self.low))
            .find(|n| !self.taken.contains(n))?;
        self.taken.insert(number);
        Some(number)
    }
}

/// FNV-1a with a finalizer; written out because it must never change between versions.
fn hash(name: &str, round: u64) -> u64 {
    let bytes = name.bytes().chain(round.to_le_bytes());
    let fnv = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // FNV's low bits mix badly; this is the finalizer of MurmurHash3.
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}
