//! The least of many keys, of which one changes at a time.

/// What is compared: less wins.
pub(in crate::kernel) trait Key: Copy + PartialEq {
    /// Greater than every key of a contestant: who cannot win.
    const NONE: Self;

    /// Whether this one wins against `other`. No two contestants have equal keys.
    fn beats(self, other: Self) -> bool;
}

/// A complete binary tree: the leaves are the contestants, every other node repeats the winner of its
/// two children, so the root is the winner of all.
///
/// # Cost
/// The winner is known. Changing a key takes one comparison per level of the tree, up to the level
/// where nothing changes. 32 bytes per leaf with keys of up to 12 bytes; leaves are a power of two.
#[derive(Clone, Debug)]
pub(super) struct Tournament<K> {
    /// The root is 1, the children of `n` are `2n` and `2n + 1`; 0 is not used.
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
            nodes: Self::nobody(1),
            leaves: 1,
        }
    }

    fn nobody(leaves: usize) -> Vec<Node<K>> {
        let nobody = Node {
            key: K::NONE,
            leaf: 0,
        };
        vec![nobody; 2 * leaves]
    }

    /// Makes everybody leave, and room for so many.
    pub(super) fn reset(&mut self, contestants: usize) {
        self.leaves = contestants.next_power_of_two();
        self.nodes = Self::nobody(self.leaves);
    }

    /// The leaf with the least key, unless all are [`Key::NONE`].
    pub(super) fn winner(&self) -> Option<u32> {
        let root = self.nodes[1];
        (root.key != K::NONE).then_some(root.leaf)
    }

    /// Sets the key of a leaf.
    pub(super) fn set(&mut self, leaf: u32, key: K) {
        if leaf as usize >= self.leaves {
            self.grow(leaf as usize + 1);
        }
        let mut place = self.leaves + leaf as usize;
        let mut winner = Node { key, leaf };
        self.nodes[place] = winner;
        while place > 1 {
            let rival = self.nodes[place ^ 1];
            if rival.key.beats(winner.key) {
                winner = rival;
            }
            place /= 2;
            if self.nodes[place] == winner {
                return;
            }
            self.nodes[place] = winner;
        }
    }

    fn grow(&mut self, contestants: usize) {
        let old = std::mem::take(&mut self.nodes);
        let contestants_before = old.get(self.leaves..).unwrap_or_default().to_vec();
        self.reset(contestants);
        let first = self.leaves;
        for (place, node) in contestants_before.into_iter().enumerate() {
            self.nodes[first + place] = node;
        }
        for place in (1..first).rev() {
            let [one, other] = [self.nodes[2 * place], self.nodes[2 * place + 1]];
            self.nodes[place] = if other.key.beats(one.key) { other } else { one };
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
