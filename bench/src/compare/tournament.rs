//! The least of many values that change one at a time. The engine finds the next departure with it.

/// The least of a fixed number of values, kept up to date.
///
/// # Shape
/// A complete binary tree in an array. Leaf `i` stands for value `i`; every inner node has the index of
/// the lesser value below it.
///
/// # Cost
/// A change takes a logarithmic number of comparisons. Reading the least value takes constant time.
#[derive(Debug)]
pub(crate) struct Tournament {
    values: Vec<f64>,
    winners: Vec<u32>,
}

impl Tournament {
    /// Creates `count` values, all infinite.
    pub(crate) fn new(count: usize) -> Self {
        let leaves = count.next_power_of_two().max(2);
        let mut winners: Vec<u32> = vec![0; 2 * leaves];
        for (node, leaf) in (leaves..2 * leaves).zip(0..) {
            winners[node] = leaf;
        }
        for node in (1..leaves).rev() {
            winners[node] = winners[2 * node];
        }
        Self {
            values: vec![f64::INFINITY; leaves],
            winners,
        }
    }

    pub(crate) fn set(&mut self, index: usize, value: f64) {
        self.values[index] = value;
        let mut node = (self.values.len() + index) / 2;
        while node > 0 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            let right_wins = self.values[right as usize] < self.values[left as usize];
            self.winners[node] = if right_wins { right } else { left };
            node /= 2;
        }
    }

    /// Returns the index of the least value, and the value.
    pub(crate) fn least(&self) -> (usize, f64) {
        let index = self.winners[1] as usize;
        (index, self.values[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_least_value_is_right_after_every_change() {
        for count in [1_u32, 2, 3, 16, 100] {
            let mut random = Random::new(3, u64::from(count));
            let mut values = vec![f64::INFINITY; count as usize];
            let mut tournament = Tournament::new(values.len());
            for _ in 0..1_000 {
                let index = random.below(count) as usize;
                let value = if random.chance(0.1) {
                    f64::INFINITY
                } else {
                    random.unit()
                };
                values[index] = value;
                tournament.set(index, value);
                let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                assert_eq!(tournament.least().1, least);
                if least.is_finite() {
                    assert_eq!(values[tournament.least().0], least);
                }
            }
        }
    }
}
