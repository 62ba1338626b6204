//! Walks two ordered maps in parallel.

use std::cmp::Ordering;

/// Returns each key of either map once, in order, with its values. Both must be in order.
///
/// # Cost
/// Linear in both maps. A lookup per key would take several times as long at 10,000 keys.
pub(crate) fn joined<K: Ord + Copy, A, B>(
    one: impl Iterator<Item = (K, A)>,
    other: impl Iterator<Item = (K, B)>,
) -> impl Iterator<Item = (K, Option<A>, Option<B>)> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || {
        let order = match (one.peek(), other.peek()) {
            (Some((left, _)), Some((right, _))) => left.cmp(right),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        let left = one.next_if(|_| order.is_le());
        let right = other.next_if(|_| order.is_ge());
        let key = match (&left, &right) {
            (Some((key, _)), _) | (None, Some((key, _))) => *key,
            (None, None) => return None,
        };
        Some((
            key,
            left.map(|(_, value)| value),
            right.map(|(_, value)| value),
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_key_appears_once_in_order_with_its_values() {
        let one = BTreeMap::from([(1, 'a'), (2, 'b'), (5, 'e')]);
        let other = BTreeMap::from([(0, "x"), (2, "y"), (3, "z")]);
        let all: Vec<_> = joined(one.iter(), other.iter()).collect();
        let expected = [
            (&0, None, Some(&"x")),
            (&1, Some(&'a'), None),
            (&2, Some(&'b'), Some(&"y")),
            (&3, None, Some(&"z")),
            (&5, Some(&'e'), None),
        ];
        assert_eq!(all, expected);
    }
}
