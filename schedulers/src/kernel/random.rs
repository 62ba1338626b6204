//! Pseudo-random numbers from a seed.

/// A random number generator, not for secrets: SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        high(mixed ^ (mixed >> 31))
    }

    /// Returns a uniform random number below `ceiling`; 0 if `ceiling` is 0, as in the kernel.
    ///
    /// Kernel: `__get_random_u32_below`. Like the kernel it multiplies instead of dividing, and draws again
    /// if the product would favour some numbers (Lemire, "Fast random integer generation in an interval",
    /// 2019).
    pub(super) fn below(&mut self, ceiling: u32) -> u32 {
        // 2^32 modulo the ceiling: the number of products that would be one too many.
        let surplus = ceiling.wrapping_neg().checked_rem(ceiling).unwrap_or(0);
        loop {
            let product = u64::from(self.next()) * u64::from(ceiling);
            if product & u64::from(u32::MAX) >= u64::from(surplus) {
                return high(product);
            }
        }
    }
}

fn high(bits: u64) -> u32 {
    (bits >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_the_ceiling_and_uniform() {
        let mut random = Random::new(7);
        let mut counts = [0_i32; 6];
        for _ in 0..60_000 {
            counts[random.below(6) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (count - 10_000).abs() < 500),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn a_seed_determines_the_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [0; 8].map(|_| random.below(1000))
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
