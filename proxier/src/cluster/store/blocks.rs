//! Byte strings, one after the other, in blocks of memory.

use super::encoding::{length_of_bytes, push_length, take_bytes};

/// The size of a block, unless it has one string that is longer. With what an allocator adds, a block is at most 64 KiB.
const BLOCK: usize = (64 << 10) - 256;

/// Byte strings that are appended one by one and used up in their order.
///
/// One long vector would be copied when it grows, and would be in memory until its last string is used.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks(Vec<Vec<u8>>);

impl Blocks {
    /// Appends a string.
    pub(super) fn push(&mut self, string: &[u8]) {
        self.push_written(string.len(), |block| block.extend_from_slice(string));
    }

    /// Appends the string of `length` bytes that `write` appends to a block.
    pub(super) fn push_written(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let block = self.with_room(length_of_bytes(length));
        push_length(block, length);
        write(block);
    }

    /// Returns a block with room for `length` bytes.
    fn with_room(&mut self, length: usize) -> &mut Vec<u8> {
        let has_room = |block: &Vec<u8>| block.capacity() - block.len() >= length;
        if !self.0.last().is_some_and(has_room) {
            self.0.push(Vec::with_capacity(length.max(BLOCK)));
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Returns the strings.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().flat_map(|block| strings(block))
    }

    /// Calls `each` with each string, and frees each block after its last.
    pub(super) fn consume(self, mut each: impl FnMut(&[u8])) {
        for block in self.0 {
            strings(&block).for_each(&mut each);
        }
    }
}

/// Equal strings in the same order, whatever the blocks.
impl PartialEq for Blocks {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Blocks {}

fn strings(mut block: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || take_bytes(&mut block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_return_in_order_from_blocks_of_bounded_size() {
        let mut blocks = Blocks::default();
        let all: Vec<Vec<u8>> = (0..3_000).map(|length| vec![7; length % 300]).collect();
        let long = vec![8; 3 * BLOCK];
        let all = [all, vec![long], vec![b"end".to_vec()]].concat();
        all.iter().for_each(|string| blocks.push(string));
        assert_eq!(blocks.iter().collect::<Vec<_>>(), all);
        let sizes: Vec<usize> = blocks.0.iter().map(Vec::capacity).collect();
        assert!(sizes.iter().filter(|&&size| size > BLOCK).count() == 1);
        assert!(
            sizes.len() <= all.concat().len() / (BLOCK - 400) + 3,
            "{sizes:?}"
        );
        // The copy has no room in its last block.
        let mut copy = blocks.clone();
        copy.push(b"more");
        assert_ne!(copy, blocks);
        blocks.push(b"more");
        assert_eq!(copy, blocks);
        let all = [all, vec![b"more".to_vec()]].concat();
        let mut consumed = Vec::new();
        blocks.consume(|string| consumed.push(string.to_vec()));
        assert_eq!(consumed, all);
    }
}
