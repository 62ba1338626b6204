//! Saves memory of large `BTreeMap`s.

use std::collections::BTreeMap;

/// Rebuilds a map with full nodes.
///
/// Insertions in key order leave each node of a `BTreeMap` nearly half empty; `collect` fills them.
///
/// # Cost
/// Linear in the size of the map. Call it after filling the map, not after each change.
pub(crate) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}
