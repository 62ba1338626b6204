//! Keeps the least of many keys while single keys change.

/// A key of a tournament; the least one wins.
pub(in crate::kernel) trait Key: Copy + PartialEq {
    /// The key of a leaf that cannot win: greater than all others.
    const NONE: Self;

    /// Returns whether this key wins against `other`. No two leaves have equal keys except `NONE`.
    fn beats(self, other: Self) -> bool;
}

/// A complete binary tree. Each leaf has a key, and every inner node repeats the winner of its two
/// children, so the root is the winner of all leaves.
///
/// # Cost
/// Reading the winner takes constant time. Changing a key takes one comparison per level, up to the first
/// level that stays the same. 32 bytes per leaf with keys of up to 12 bytes; the number of leaves is a
/// power of two.
#[derive(Clone, Debug)]
pub(super) struct Tournament<K> {
    /// The root is 1, the children of `n` are `2n` and `2n + 1`; index 0 is unused.
    nodes: Vec<Node<K>>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Node<K> {
    key: K,
    leaf: u32,
}

impl<K: Key> Tournament<K> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Self::empty(1),
            leaves: 1,
        }
    }

    fn empty(leaves: usize) -> Vec<Node<K>> {
        let empty = Node {
            key: K::NONE,
            leaf: 0,
        };
        vec![empty; 2 * leaves]
    }

    /// Removes all keys and makes room for `contestants` leaves.
    pub(super) fn reset(&mut self, contestants: usize) {
        self.leaves = contestants.next_power_of_two();
        self.nodes = Self::empty(self.leaves);
    }

    /// Returns the leaf with the least key; `None` if all keys are [`Key::NONE`].
    pub(super) fn winner(&self) -> Option<u32> {
        let root = self.nodes[1];
        (root.key != K::NONE).then_some(root.leaf)
    }

    /// Sets the key of a leaf.
    pub(super) fn set(&mut self, leaf: u32, key: K) {
        if leaf as usize >= self.leaves {
            self.grow(leaf as usize + 1);
        }
        let mut node_index = self.leaves + leaf as usize;
        let mut winner = Node { key, leaf };
        self.nodes[node_index] = winner;
        while node_index > 1 {
            let rival = self.nodes[node_index ^ 1];
            if rival.key.beats(winner.key) {
                winner = rival;
            }
            node_index /= 2;
            // No change here means no change above: most updates stop after a few levels.
            if self.nodes[node_index] == winner {
                return;
            }
            self.nodes[node_index] = winner;
        }
    }

    fn grow(&mut self, contestants: usize) {
        let old = std::mem::take(&mut self.nodes);
        let contestants_before = old.get(self.leaves..).unwrap_or_default().to_vec();
        self.reset(contestants);
        let first = self.leaves;
        for (node_index, node) in contestants_before.into_iter().enumerate() {
            self.nodes[first + node_index] = node;
        }
        for node_index in (1..first).rev() {
            let [one, other] = [self.nodes[2 * node_index], self.nodes[2 * node_index + 1]];
            self.nodes[node_index] = if other.key.beats(one.key) { other } else { one };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Key for u16 {
        const NONE: Self = Self::MAX;

        fn beats(self, other: Self) -> bool {
            self < other
        }
    }

    #[test]
    fn the_least_wins_through_growth_and_changes() {
        let mut tournament = Tournament::new();
        assert_eq!(tournament.winner(), None);
        let mut keys = [u16::NONE; 100];
        let mut random = 1_u64;
        for step in 0..10_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let leaf = u16::try_from((random >> 33) % 100).unwrap();
            let key = if random >> 62 == 0 {
                u16::NONE
            } else {
                // Unique, as keys must be.
                u16::try_from((random >> 40) % 600).unwrap() * 100 + leaf
            };
            keys[usize::from(leaf)] = key;
            tournament.set(leaf.into(), key);
            let least = (0..100_u32).min_by_key(|&leaf| keys[leaf as usize]);
            let expected = least.filter(|&leaf| keys[leaf as usize] != u16::NONE);
            assert_eq!(tournament.winner(), expected, "step {step}");
        }
    }
}
