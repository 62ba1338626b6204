//! A map in little memory.

use std::cmp::Ordering;
use std::mem;

/// The maximum number of entries in a block. An insertion moves at most as many.
const BLOCK: usize = 128;

/// A map whose keys are byte strings of one length, in the order of the bytes.
///
/// A `BTreeMap` of keys of any kind needs the size of the largest kind for each, and half of its nodes' memory
/// is often unused. Here, an entry needs the bytes of its key and its value.
#[derive(Clone, Debug)]
pub(crate) struct PackedMap<V> {
    /// The length of each key.
    width: usize,
    /// The entries in the order of their keys. No block is empty.
    blocks: Vec<Block<V>>,
}

/// At most [`BLOCK`] entries.
#[derive(Clone, Debug)]
struct Block<V> {
    /// The keys, one directly after the other.
    keys: Vec<u8>,
    values: Vec<V>,
}

/// The place of an entry: the index of its block, and its index there.
type Place = (usize, usize);

impl<V> PackedMap<V> {
    /// Returns an empty map for keys of `width` bytes, at least 1.
    pub(crate) fn new(width: usize) -> Self {
        let blocks = Vec::new();
        Self { width, blocks }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.blocks.iter().map(|block| block.values.len()).sum()
    }

    /// Returns the value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let (block, index) = self.find(key).ok()?;
        self.blocks[block].values.get(index)
    }

    /// Sets the value of `key`. Returns its earlier value.
    pub(crate) fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        debug_assert_eq!(key.len(), self.width);
        match self.find(key) {
            Ok((block, index)) => {
                let present = &mut self.blocks[block].values[index];
                Some(mem::replace(present, value))
            }
            Err(place) => {
                let (block, index) = self.with_room(place);
                let (block, start) = (&mut self.blocks[block], index * self.width);
                block.keys.extend_from_slice(key);
                block.keys[start..].rotate_right(self.width);
                block.values.insert(index, value);
                None
            }
        }
    }

    /// Removes `key`. Returns its value.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<V> {
        let (at, index) = self.find(key).ok()?;
        let (block, start) = (&mut self.blocks[at], index * self.width);
        block.keys.drain(start..start + self.width);
        let value = block.values.remove(index);
        if block.values.is_empty() {
            self.blocks.remove(at);
        } else {
            self.join(at);
            self.join(at.saturating_sub(1));
        }
        Some(value)
    }

    /// Returns the entries in the order of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        let blocks = self.blocks.iter();
        blocks.flat_map(|block| block.keys.chunks_exact(self.width).zip(&block.values))
    }

    /// Frees the memory that the growth of the map left unused.
    pub(crate) fn pack(&mut self) {
        for block in &mut self.blocks {
            block.keys.shrink_to_fit();
            block.values.shrink_to_fit();
        }
        self.blocks.shrink_to_fit();
    }

    /// Returns the place of `key`; if it has none, the place where it belongs.
    fn find(&self, key: &[u8]) -> Result<Place, Place> {
        let width = self.width;
        // A start inserts nearly all keys in their order, and looks up each one before.
        if let Some(last) = self.blocks.last()
            && &last.keys[last.keys.len() - width..] < key
        {
            return Err((self.blocks.len() - 1, last.values.len()));
        }
        let is_before = |block: &Block<V>| &block.keys[..width] <= key;
        let at = (self.blocks.partition_point(is_before)).saturating_sub(1);
        let Some(block) = self.blocks.get(at) else {
            return Err((at, 0));
        };
        let (mut low, mut high) = (0, block.values.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match block.keys[middle * width..][..width].cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok((at, middle)),
                Ordering::Greater => high = middle,
            }
        }
        Err((at, low))
    }

    /// Makes room for an entry at `place`. Returns its new place.
    fn with_room(&mut self, (at, index): Place) -> Place {
        let is_last = at + 1 >= self.blocks.len();
        let Some(block) = self.blocks.get_mut(at) else {
            self.blocks.push(Block::default());
            return (at, index);
        };
        if block.values.len() < BLOCK {
            return (at, index);
        }
        // Insertions in the order of the keys, as at a start, leave full blocks.
        let kept = if is_last && index == BLOCK {
            BLOCK
        } else {
            BLOCK / 2
        };
        let rest = Block {
            keys: block.keys.split_off(kept * self.width),
            values: block.values.split_off(kept),
        };
        self.blocks.insert(at + 1, rest);
        match index.checked_sub(kept) {
            Some(index) => (at + 1, index),
            None => (at, index),
        }
    }

    /// Joins the block `at` and the next one if both are nearly empty.
    fn join(&mut self, at: usize) {
        let [block, next, ..] = &mut self.blocks[at..] else {
            return;
        };
        if block.values.len() + next.values.len() <= BLOCK / 2 {
            block.keys.append(&mut next.keys);
            block.values.append(&mut next.values);
            self.blocks.remove(at + 1);
        }
    }
}

// Not derived: maps with the same entries may have different blocks.
impl<V: PartialEq> PartialEq for PackedMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<V: Eq> Eq for PackedMap<V> {}

impl<V> Default for Block<V> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            values: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Returns keys in runs, so that blocks become full and empty.
    fn runs() -> impl Strategy<Value = Vec<(bool, u16, u16, i32)>> {
        let run = (
            any::<bool>(),
            0..600_u16,
            0..400_u16,
            prop::sample::select(vec![-7, -1, 1, 3]),
        );
        vec(run, 1..12)
    }

    fn check_blocks<V>(map: &PackedMap<V>) {
        let lengths = map.blocks.iter().map(|block| {
            assert_eq!(block.keys.len(), block.values.len() * map.width);
            block.values.len()
        });
        let lengths: Vec<usize> = lengths.collect();
        assert!(
            lengths.iter().all(|length| (1..=BLOCK).contains(length)),
            "{lengths:?}"
        );
        // So half of the map's memory is used, whatever was removed.
        let mut pairs = lengths.windows(2);
        assert!(
            pairs.all(|pair| pair[0] + pair[1] > BLOCK / 2),
            "{lengths:?}"
        );
    }

    #[test]
    fn keys_that_are_inserted_in_their_order_fill_the_blocks() {
        let mut map = PackedMap::new(4);
        for key in (0_u32..).take(10 * BLOCK) {
            map.insert(&key.to_be_bytes(), ());
        }
        assert_eq!(map.blocks.len(), 10);
    }

    proptest! {
        #[test]
        fn a_packed_map_is_an_ordered_map(runs in runs()) {
            let mut map = PackedMap::new(2);
            let mut expected = BTreeMap::new();
            for (inserts, first, count, step) in runs {
                for nth in 0..i32::from(count) {
                    let key = i32::from(first) + nth * step;
                    let key = u16::try_from(key.rem_euclid(600)).unwrap().to_be_bytes();
                    match inserts {
                        true => prop_assert_eq!(map.insert(&key, nth), expected.insert(key, nth)),
                        false => prop_assert_eq!(map.remove(&key), expected.remove(&key)),
                    }
                    prop_assert_eq!(map.get(&key), expected.get(&key));
                }
                prop_assert_eq!(map.len(), expected.len());
                prop_assert!(map.iter().eq(expected.iter().map(|(key, value)| (&key[..], value))));
                check_blocks(&map);
                map.pack();
            }
        }
    }
}
