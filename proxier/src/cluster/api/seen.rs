//! The values of a list that came before.

use std::collections::HashSet;
use std::hash::Hash;

use smallvec::SmallVec;

/// The most values that are compared one by one.
const FEW: usize = 8;

/// The values that were seen.
///
/// Nearly all lists have a few values, which need no memory of their own here. The others are hashed, so that
/// a list of a million values takes no longer per value.
pub(super) struct SeenValues<T> {
    few: SmallVec<[T; FEW]>,
    others: HashSet<T>,
}

impl<T: Eq + Hash> SeenValues<T> {
    pub(super) fn new() -> Self {
        Self {
            few: SmallVec::new(),
            others: HashSet::new(),
        }
    }

    /// Returns whether `value` was seen.
    pub(super) fn contains(&self, value: &T) -> bool {
        self.few.contains(value) || self.others.contains(value)
    }

    /// Adds `value`. Returns whether it is new.
    pub(super) fn insert(&mut self, value: T) -> bool {
        if self.few.contains(&value) {
            return false;
        }
        if self.few.len() < FEW {
            self.few.push(value);
            return true;
        }
        self.others.insert(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_new_once() {
        let mut seen = SeenValues::new();
        for value in 0..3 * FEW {
            assert!(!seen.contains(&value));
            assert!(seen.insert(value));
        }
        for value in 0..3 * FEW {
            assert!(seen.contains(&value));
            assert!(!seen.insert(value));
        }
    }
}
