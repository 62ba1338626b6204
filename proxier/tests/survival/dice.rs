//! Chance that can be repeated.

/// Numbers that are the same every time.
pub(crate) struct Dice(u32);

impl Dice {
    pub(crate) fn new(seed: u32) -> Self {
        Self(seed)
    }

    /// A number less than `below`.
    pub(crate) fn draw(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        usize::try_from(self.0 >> 8).unwrap() % below
    }

    /// Whether what happens once in so many times happens now.
    pub(crate) fn is(&mut self, one_in: usize) -> bool {
        self.draw(one_in) == 0
    }
}
