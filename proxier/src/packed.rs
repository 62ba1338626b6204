//! Maps without spare room.

use std::collections::BTreeMap;

/// Makes a map anew without the room that insertions in order left in its nodes, nearly half of it.
///
/// # Cost
/// Linear in the size of the map: for after it was filled, not for after a change.
pub(crate) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}
