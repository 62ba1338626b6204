//! Random numbers determined by a seed: a test that fails prints its seed.

use std::ops::RangeInclusive;

/// SplitMix64 (Steele, Lea, Flood 2014): the state is one word, and every seed is equally good.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Returns generator `number` of those that `seed` determines.
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut random = Self(seed);
        Self(random.word() ^ Self(number).word())
    }

    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number in `range`.
    pub(crate) fn draw(&mut self, range: RangeInclusive<u32>) -> u32 {
        let (low, high) = range.into_inner();
        let count = u64::from(high.saturating_sub(low)) + 1;
        // At most 2^33 values out of 2^64: the bias is too small to measure.
        let offset = u32::try_from(self.word() % count).unwrap_or_default();
        low + offset
    }

    /// Returns true in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.draw(1..=100) <= percent
    }

    /// Returns the index of one of `count` things, at least one.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        let last = u32::try_from(count - 1).unwrap_or(u32::MAX);
        self.draw(0..=last) as usize
    }

    /// Returns one of `choices`, at least one.
    pub(crate) fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }
}
