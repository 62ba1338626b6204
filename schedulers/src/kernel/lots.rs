//! Random numbers that a seed determines.

/// A generator of random numbers: SplitMix64 (Steele, Lea, Flood, 2014). Not for secrets.
#[derive(Clone, Debug)]
pub(super) struct Lots {
    state: u64,
}

impl Lots {
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

    /// A number below `ceiling`, all equally likely; 0 if `ceiling` is 0, as in the kernel.
    ///
    /// Kernel: `__get_random_u32_below`, which multiplies, too, and draws again where the product would
    /// favour some numbers (Lemire, "Fast random integer generation in an interval", 2019).
    pub(super) fn below(&mut self, ceiling: u32) -> u32 {
        // 2^32 modulo the ceiling: so many products too many.
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
    fn below_is_below_and_even() {
        let mut lots = Lots::new(7);
        let mut counts = [0_i32; 6];
        for _ in 0..60_000 {
            counts[lots.below(6) as usize] += 1;
        }
        assert!(
            counts.iter().all(|count| (count - 10_000).abs() < 500),
            "{counts:?}"
        );
        assert_eq!(lots.below(0), 0);
        assert_eq!(lots.below(1), 0);
    }

    #[test]
    fn a_seed_determines_the_sequence() {
        let draw = |seed| {
            let mut lots = Lots::new(seed);
            [0; 8].map(|_| lots.below(1000))
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
