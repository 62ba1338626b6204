//! Random numbers determined by a seed, and the distributions of a workload.
//!
//! Not a dependency, because the published numbers must stay reproducible, and another version of a crate
//! may draw other numbers.

/// Xoshiro256++ 1.0 (Blackman and Vigna, 2018), period 2^256 - 1. As its authors advise, SplitMix64
/// (Steele, Lea and Flood, 2014) fills its state.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// Returns random numbers that `seed` and `stream` determine. Different streams are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut word = split_mix(&mut { seed }) ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
        Self {
            state: std::array::from_fn(|_| split_mix(&mut word)),
        }
    }

    fn word(&mut self) -> u64 {
        let state = &mut self.state;
        let word = state[0]
            .wrapping_add(state[3])
            .rotate_left(23)
            .wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        word
    }

    /// Returns a uniform number in (0, 1]; 0 is excluded so that its logarithm is finite.
    pub(crate) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
        ((self.word() >> 11) + 1) as f64 * STEP
    }

    /// Returns a uniform number below `bound`; 0 if `bound` is 0.
    ///
    /// Multiplies and shifts (Lemire 2019) without rejection: the bias is below 2^-32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let product = u128::from(self.word()) * u128::from(bound);
        u32::try_from(product >> 64).unwrap_or_default()
    }

    /// Returns true with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() <= probability
    }

    /// Returns an exponentially distributed number.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }

    /// Returns a standard normal number, by Marsaglia's polar method.
    ///
    /// Drops the second number that the method yields, because keeping it would add state.
    fn normal(&mut self) -> f64 {
        loop {
            let x = 2.0 * self.unit() - 1.0;
            let y = 2.0 * self.unit() - 1.0;
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A distribution of durations, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Duration {
    /// Exponential: memoryless, with a coefficient of variation of 1.
    Exponential { mean: f64 },
    /// Log-normal: the logarithm is normal with deviation `sigma`.
    LogNormal { mean: f64, sigma: f64 },
    /// Pareto: heavy-tailed. The share above x is proportional to x^-shape, up to `longest`.
    Pareto {
        shape: f64,
        shortest: f64,
        longest: f64,
    },
}

impl Duration {
    pub(crate) fn draw(self, random: &mut Random) -> f64 {
        match self {
            Self::Exponential { mean } => random.exponential(mean),
            Self::LogNormal { mean, sigma } => {
                (mean.ln() - sigma * sigma / 2.0 + sigma * random.normal()).exp()
            }
            Self::Pareto {
                shape,
                shortest,
                longest,
            } => {
                let least = (shortest / longest).powf(shape);
                let share = least + (1.0 - least) * random.unit();
                shortest * share.powf(-1.0 / shape)
            }
        }
    }

    /// Returns the expected value, in seconds.
    pub(crate) fn mean(self) -> f64 {
        match self {
            Self::Exponential { mean } | Self::LogNormal { mean, .. } => mean,
            Self::Pareto {
                shape,
                shortest,
                longest,
            } => {
                let least = (shortest / longest).powf(shape);
                let whole = 1.0 - (shortest / longest).powf(shape - 1.0);
                shortest * shape / (shape - 1.0) * whole / (1.0 - least)
            }
        }
    }
}

/// Numbers below a count, with unequal frequencies: number k has the frequency 1/(k+1)^skew.
///
/// Walker's alias method: a draw takes constant time.
#[derive(Clone, Debug)]
pub(crate) struct Popularity {
    /// For each number: the probability that it is returned, and the number returned otherwise.
    columns: Vec<(f64, u32)>,
}

impl Popularity {
    /// Creates `count` numbers, at least one. With `skew` 0 all have the same frequency.
    pub(crate) fn new(count: u32, skew: f64) -> Self {
        let count = count.max(1);
        let frequencies: Vec<f64> = (1..=count).map(|k| f64::from(k).powf(-skew)).collect();
        let scale = f64::from(count) / frequencies.iter().sum::<f64>();
        let mut columns: Vec<(f64, u32)> = (0..count)
            .zip(&frequencies)
            .map(|(k, frequency)| (frequency * scale, k))
            .collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..count).partition(|&k| columns[k as usize].0 < 1.0);
        // Fill each column below the mean up to it with a number above the mean.
        while let (Some(poor), Some(&rich)) = (small.pop(), large.last()) {
            columns[poor as usize].1 = rich;
            columns[rich as usize].0 -= 1.0 - columns[poor as usize].0;
            if columns[rich as usize].0 < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        Self { columns }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        let count = u32::try_from(self.columns.len()).unwrap_or(u32::MAX);
        if count == 1 {
            return 0;
        }
        let column = random.below(count);
        let (stays, alias) = self.columns[column as usize];
        if random.chance(stays) { column } else { alias }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mean of 200,000 draws.
    fn mean(mut draw: impl FnMut(&mut Random) -> f64) -> f64 {
        let mut random = Random::new(7, 1);
        (0..200_000).map(|_| draw(&mut random)).sum::<f64>() / 200_000.0
    }

    fn close(value: f64, expected: f64, tolerance: f64) {
        assert!(
            (value / expected - 1.0).abs() < tolerance,
            "{value} is not {expected}"
        );
    }

    #[test]
    fn words_equal_those_of_the_reference_implementation() {
        // The words of the reference implementation for the state 1, 2, 3, 4.
        let mut random = Random {
            state: [1, 2, 3, 4],
        };
        assert_eq!(random.word(), 41_943_041);
        assert_eq!(random.word(), 58_720_359);
        assert_eq!(random.word(), 3_588_806_011_781_223);
    }

    #[test]
    fn streams_are_different_and_repeatable() {
        let words = |seed, stream| Random::new(seed, stream).word();
        assert_eq!(words(1, 2), words(1, 2));
        assert_ne!(words(1, 2), words(1, 3));
        assert_ne!(words(1, 2), words(2, 2));
    }

    #[test]
    fn means_are_as_documented() {
        close(mean(Random::unit), 0.5, 0.01);
        for duration in [
            Duration::Exponential { mean: 0.1 },
            Duration::LogNormal {
                mean: 3.0,
                sigma: 1.0,
            },
            Duration::Pareto {
                shape: 1.5,
                shortest: 0.02,
                longest: 10.0,
            },
        ] {
            close(mean(|random| duration.draw(random)), duration.mean(), 0.03);
        }
        close(mean(|random| random.normal().powi(2)), 1.0, 0.02);
    }

    #[test]
    fn pareto_stays_within_its_bounds() {
        let mut random = Random::new(1, 1);
        let duration = Duration::Pareto {
            shape: 1.1,
            shortest: 0.5,
            longest: 80.0,
        };
        for _ in 0..100_000 {
            assert!((0.499_999..80.000_1).contains(&duration.draw(&mut random)));
        }
    }

    #[test]
    fn popularity_follows_the_power_law() {
        let popularity = Popularity::new(100, 1.0);
        let harmonic: f64 = (1..=100).map(|k| 1.0 / f64::from(k)).sum();
        for k in [0_u32, 1, 9] {
            let share = mean(|random| f64::from(popularity.draw(random) == k));
            close(share, 1.0 / (f64::from(k + 1) * harmonic), 0.05);
        }
        let even = Popularity::new(10, 0.0);
        close(mean(|random| f64::from(even.draw(random) == 9)), 0.1, 0.03);
    }
}
