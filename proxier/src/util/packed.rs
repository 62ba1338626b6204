//! Saves memory of large `BTreeMap`s.

use std::collections::BTreeMap;

/// Rebuilds a map with full nodes.
///
/// Insertions in key order leave each node of a `BTreeMap` nearly half empty; `append` fills them, and frees
/// each old node when its entries have moved. `collect` would copy all entries into a vector first.
///
/// # Cost
/// Linear in the size of the map. Call it after filling the map, not after each change.
pub(crate) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    let mut old = std::mem::take(map);
    // `append` to an empty map only swaps the two.
    map.extend(old.pop_first());
    map.append(&mut old);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_map_has_the_same_entries() {
        for length in [0, 1, 2, 12, 1_000] {
            let map: BTreeMap<u32, u32> = (0..length).map(|key| (key, key + 1)).collect();
            let mut packed = map.clone();
            pack(&mut packed);
            assert_eq!(packed, map);
        }
    }
}
