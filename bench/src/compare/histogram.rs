//! A histogram of latencies.

/// Steps per factor of two.
const STEPS: u64 = 64;
/// The number of low bits of an `f64`'s 52-bit fraction that are ignored.
const SHIFT: u32 = 52 - STEPS.ilog2();
/// The biased exponent of the least latency with its own step, 2^-20 s: about a microsecond. Shorter
/// ones are counted in the first step.
const LEAST_EXPONENT: u64 = 1023 - 20;
/// Steps for 40 doublings of the least latency: up to twelve days.
const COUNTS: usize = 64 * 40;

/// How often each latency occurred, in steps of at most 1.6 %.
///
/// The upper bits of a floating-point number are its exponent and the start of its fraction. As an
/// integer they grow with the logarithm, so a shift and a subtraction give the step.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: f64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![0; COUNTS],
            total: 0,
            sum: 0.0,
        }
    }

    /// Counts a latency in seconds.
    pub(crate) fn record(&mut self, seconds: f64) {
        let position = (seconds.to_bits() >> SHIFT).saturating_sub(LEAST_EXPONENT * STEPS);
        let last = self.counts.len() - 1;
        self.counts[usize::try_from(position).unwrap_or(last).min(last)] += 1;
        self.total += 1;
        self.sum += seconds;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum += other.sum;
    }

    /// Returns the exact mean in seconds; 0 without latencies.
    pub(crate) fn mean(&self) -> f64 {
        if self.total == 0 {
            0.0
        } else {
            self.sum / self.total as f64
        }
    }

    /// Returns the latency in seconds that this share of all does not exceed; 0 without latencies.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let wanted = (share * self.total as f64).ceil().max(1.0);
        let mut below = 0.0;
        for (step, &count) in (0_u64..).zip(&self.counts) {
            let count = count as f64;
            if count > 0.0 && below + count >= wanted {
                // Interpolate within the step, so that the error is less than its 1.6 %.
                let (low, high) = (lower_end(step), lower_end(step + 1));
                return low + (high - low) * (wanted - below) / count;
            }
            below += count;
        }
        0.0
    }
}

fn lower_end(step: u64) -> f64 {
    f64::from_bits((LEAST_EXPONENT * STEPS + step) << SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_within_a_step() {
        let mut histogram = Histogram::new();
        for value in 1..=10_000 {
            histogram.record(f64::from(value) / 1_000.0);
        }
        for share in [0.001, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let found = histogram.quantile(share);
            let truth = share * 10.0;
            assert!((found / truth - 1.0).abs() < 0.016, "{share}: {found}");
        }
        assert_eq!(histogram.total, 10_000);
        assert!((histogram.mean() - 5.0005).abs() < 1e-9);
    }

    #[test]
    fn extreme_latencies_are_counted_in_the_outermost_steps() {
        let mut histogram = Histogram::new();
        for value in [0.0, 1e-12, 1e9, f64::INFINITY] {
            histogram.record(value);
        }
        assert_eq!(histogram.total, 4);
        assert!(histogram.quantile(0.25) < 1e-5);
        assert!(histogram.quantile(1.0) > 1e5);
    }

    #[test]
    fn a_merged_histogram_has_all_counts() {
        let (mut one, mut two, mut both) = (Histogram::new(), Histogram::new(), Histogram::new());
        for value in 1..100 {
            let value = f64::from(value);
            both.record(value);
            if value < 30.0 { &mut one } else { &mut two }.record(value);
        }
        one.merge(&two);
        assert_eq!(one.counts, both.counts);
        assert_eq!(one.quantile(0.9), both.quantile(0.9));
        assert_eq!(Histogram::new().quantile(0.5), 0.0);
    }
}
