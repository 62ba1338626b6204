//! A set of small numbers with a fast search for the next member.

/// A bit per number, a summary bit per word of 64 bits, and so on up to a single word.
///
/// # Cost
/// Every operation takes one step per level: 3 levels for 65536 numbers, 4 for 16 million. Clearing
/// takes one step per 64 numbers. Memory: 1.02 bits per number.
#[derive(Clone, Debug)]
pub(super) struct Bitmap {
    /// One bit per number.
    words: Vec<u64>,
    /// One bit per word of the level below, lowest level first.
    summaries: Vec<Vec<u64>>,
}

const BITS: usize = 64;

impl Bitmap {
    /// Creates an empty set with room for numbers below `count`.
    pub(super) fn new(count: usize) -> Self {
        let mut words = count.div_ceil(BITS).max(1);
        let mut bitmap = Self {
            words: vec![0; words],
            summaries: Vec::new(),
        };
        while words > 1 {
            words = words.div_ceil(BITS);
            bitmap.summaries.push(vec![0; words]);
        }
        bitmap
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        for summary in &mut self.summaries {
            summary.fill(0);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.summaries.last().unwrap_or(&self.words)[0] == 0
    }

    pub(super) fn insert(&mut self, number: usize) {
        let mut was_empty = set(&mut self.words, number);
        let mut number = number;
        for summary in &mut self.summaries {
            if !was_empty {
                return;
            }
            number /= BITS;
            was_empty = set(summary, number);
        }
    }

    pub(super) fn remove(&mut self, number: usize) {
        let mut is_empty = unset(&mut self.words, number);
        let mut number = number;
        for summary in &mut self.summaries {
            if !is_empty {
                return;
            }
            number /= BITS;
            is_empty = unset(summary, number);
        }
    }

    /// Returns the least member not below `from`.
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        // Nearly always the word itself has the next member: no summary is read.
        match first_in_word(&self.words, from)? {
            Ok(number) => Some(number),
            Err(next_word) => self.next_by_summary(next_word),
        }
    }

    /// Returns the least member in `word` or a later word.
    fn next_by_summary(&self, word: usize) -> Option<usize> {
        let mut from = word;
        for (height, summary) in self.summaries.iter().enumerate() {
            match first_in_word(summary, from)? {
                Ok(number) => return Some(self.least_below(height, number)),
                Err(next_word) => from = next_word,
            }
        }
        None
    }

    /// Returns the least member below the bit `number` of a summary.
    fn least_below(&self, height: usize, number: usize) -> usize {
        let below = self.summaries[..height].iter().rev();
        below.chain([&self.words]).fold(number, |number, level| {
            number * BITS + level[number].trailing_zeros() as usize
        })
    }
}

/// Returns the first bit set from `from` on in its word, or the index of the next word as an error.
/// `None` if the set has no such word.
#[inline]
fn first_in_word(words: &[u64], from: usize) -> Option<Result<usize, usize>> {
    let word = words.get(from / BITS)? & (u64::MAX << (from % BITS));
    Some(if word == 0 {
        Err(from / BITS + 1)
    } else {
        Ok(from / BITS * BITS + word.trailing_zeros() as usize)
    })
}

/// Sets a bit; returns whether its word was empty before.
fn set(words: &mut [u64], number: usize) -> bool {
    let word = &mut words[number / BITS];
    let was_empty = *word == 0;
    *word |= 1 << (number % BITS);
    was_empty
}

/// Clears a bit; returns whether its word is empty now.
fn unset(words: &mut [u64], number: usize) -> bool {
    let word = &mut words[number / BITS];
    *word &= !(1 << (number % BITS));
    *word == 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn next_returns_what_a_btreeset_returns() {
        for count in [1, 63, 64, 65, 4_096, 4_097, 300_000] {
            let mut bitmap = Bitmap::new(count);
            let mut set = BTreeSet::new();
            let mut random = 1_u64;
            for _ in 0..3_000 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let number = (random >> 20) as usize % count;
                if random >> 62 == 0 {
                    bitmap.remove(number);
                    set.remove(&number);
                } else {
                    bitmap.insert(number);
                    set.insert(number);
                }
                let from = (random >> 30) as usize % (count + 1);
                assert_eq!(bitmap.next(from), set.range(from..).next().copied());
                assert_eq!(bitmap.is_empty(), set.is_empty());
            }
            bitmap.clear();
            assert!(bitmap.is_empty());
            assert_eq!(bitmap.next(0), None);
        }
    }
}
