//! Ordered maps whose keys of IPv4 take a third of the memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Index;

use ipvs_netlink as ipvs;

use crate::util::packed::pack;

/// A key that has a short form, usually if it is of IPv4.
pub trait SplitKey: Copy + Ord + fmt::Debug {
    /// The short form; its order is that of the keys.
    type Short: Copy + Ord;

    /// Returns the short form, if there is one.
    fn short(&self) -> Option<Self::Short>;

    /// Returns the key of a short form.
    fn of_short(short: Self::Short) -> Self;
}

/// An ordered map, with a tree of its own for the keys that have a short form.
///
/// Most clusters have IPv4 addresses only. A comparison of two short forms is that of two integers.
#[derive(Clone, PartialEq, Eq)]
pub struct SplitMap<K: SplitKey, V> {
    short: BTreeMap<K::Short, V>,
    long: BTreeMap<K, V>,
}

impl<K: SplitKey, V> SplitMap<K, V> {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        match key.short() {
            Some(short) => self.short.get(&short),
            None => self.long.get(key),
        }
    }

    /// Returns the value of `key`, to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match key.short() {
            Some(short) => self.short.get_mut(&short),
            None => self.long.get_mut(key),
        }
    }

    /// Returns whether there is an entry for `key`.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Sets the value of `key`. Returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match key.short() {
            Some(short) => self.short.insert(short, value),
            None => self.long.insert(key, value),
        }
    }

    /// Removes the entry of `key`. Returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.remove_if(key, |_| true)
    }

    /// Removes the entry of `key` if `test` accepts its value. Returns the value.
    pub(crate) fn remove_if(&mut self, key: &K, test: impl Fn(&V) -> bool) -> Option<V> {
        match key.short() {
            Some(short) => remove_if(self.short.entry(short), test),
            None => remove_if(self.long.entry(*key), test),
        }
    }

    /// Keeps the entries whose keys `test` accepts.
    pub fn retain(&mut self, mut test: impl FnMut(&K) -> bool) {
        self.short.retain(|short, _| test(&K::of_short(*short)));
        self.long.retain(|key, _| test(key));
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees the memory that many insertions in order of the keys left unused.
    pub(crate) fn pack(&mut self) {
        pack(&mut self.short);
        pack(&mut self.long);
    }

    /// Returns every entry, in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let short = self.short.iter();
        let mut short = short.map(|(short, value)| (K::of_short(*short), value));
        let mut long = self.long.iter().map(|(key, value)| (*key, value));
        let mut next = (short.next(), long.next());
        std::iter::from_fn(move || match (&next.0, &next.1) {
            (Some((one, _)), Some((other, _))) if other < one => {
                std::mem::replace(&mut next.1, long.next())
            }
            (Some(_), _) => std::mem::replace(&mut next.0, short.next()),
            (None, _) => std::mem::replace(&mut next.1, long.next()),
        })
    }

    /// Returns every entry, in no particular order.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        let short = self.short.into_iter();
        let short = short.map(|(short, value)| (K::of_short(short), value));
        short.chain(self.long)
    }

    /// Returns every key, in order.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns every value, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.short.values().chain(self.long.values())
    }

    /// Returns every value to change it, in no particular order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.short.values_mut().chain(self.long.values_mut())
    }

    /// Returns the entries from `first` to `last`, which must both have a short form or both have none.
    pub(crate) fn range(&self, first: K, last: K) -> impl Iterator<Item = (K, &V)> {
        let short = first.short().zip(last.short());
        let short = short.map(|(first, last)| self.short.range(first..=last));
        let short = short.into_iter().flatten();
        let short = short.map(|(short, value)| (K::of_short(*short), value));
        let long = self.long.range(first..=last);
        short.chain(long.map(|(key, value)| (*key, value)))
    }
}

fn remove_if<K: Ord, V>(entry: Entry<'_, K, V>, test: impl Fn(&V) -> bool) -> Option<V> {
    match entry {
        Entry::Occupied(entry) if test(entry.get()) => Some(entry.remove()),
        _ => None,
    }
}

impl<K: SplitKey, V> Default for SplitMap<K, V> {
    fn default() -> Self {
        Self {
            short: BTreeMap::new(),
            long: BTreeMap::new(),
        }
    }
}

impl<K: SplitKey, V: fmt::Debug> fmt::Debug for SplitMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: SplitKey, V> Extend<(K, V)> for SplitMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| {
            self.insert(key, value);
        });
    }
}

impl<K: SplitKey, V> FromIterator<(K, V)> for SplitMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map.pack();
        map
    }
}

impl<K: SplitKey, V> Index<&K> for SplitMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        match key.short() {
            Some(short) => &self.short[&short],
            None => &self.long[key],
        }
    }
}

impl SplitKey for IpAddr {
    type Short = u32;

    fn short(&self) -> Option<u32> {
        match *self {
            Self::V4(address) => Some(address.into()),
            Self::V6(_) => None,
        }
    }

    fn of_short(short: u32) -> Self {
        Ipv4Addr::from(short).into()
    }
}

/// The protocols of Services, in the order of [`ipvs::Protocol`].
const PROTOCOLS: [ipvs::Protocol; 3] = [
    ipvs::Protocol::Tcp,
    ipvs::Protocol::Udp,
    ipvs::Protocol::Sctp,
];

/// The short form has the place of the protocol in [`PROTOCOLS`], the IPv4 address and the port.
impl SplitKey for ipvs::ServiceKey {
    type Short = u64;

    fn short(&self) -> Option<u64> {
        let Self::Address {
            protocol,
            address: IpAddr::V4(address),
            port,
        } = *self
        else {
            return None;
        };
        let protocol: u64 = match protocol {
            ipvs::Protocol::Tcp => 0,
            ipvs::Protocol::Udp => 1,
            ipvs::Protocol::Sctp => 2,
            _ => return None,
        };
        Some(protocol << 48 | u64::from(u32::from(address)) << 16 | u64::from(port))
    }

    fn of_short(short: u64) -> Self {
        let [_, protocol, a, b, c, d, high, low] = short.to_be_bytes();
        Self::Address {
            protocol: PROTOCOLS[usize::from(protocol)],
            address: [a, b, c, d].into(),
            port: u16::from_be_bytes([high, low]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Vec<ipvs::ServiceKey> {
        let numbers = [6, 17, 132, 47];
        let addresses: [IpAddr; 4] = [
            [0, 0, 0, 0].into(),
            [10, 96, 0, 1].into(),
            [255, 255, 255, 255].into(),
            [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(),
        ];
        let mut keys = Vec::new();
        for number in numbers {
            for address in addresses {
                keys.extend([0, 80, u16::MAX].map(|port| ipvs::ServiceKey::Address {
                    protocol: ipvs::Protocol::from(number),
                    address,
                    port,
                }));
            }
        }
        let mark = |family| ipvs::ServiceKey::Mark { family, mark: 7 };
        keys.extend([ipvs::Family::V4, ipvs::Family::V6].map(mark));
        keys
    }

    #[test]
    fn a_split_map_has_the_entries_and_the_order_of_one_map() {
        let one: BTreeMap<_, _> = keys().into_iter().zip(0..).collect();
        let mut split: SplitMap<_, _> = keys().into_iter().rev().zip((0..50).rev()).collect();
        assert!(
            split
                .iter()
                .eq(one.iter().map(|(key, value)| (*key, value)))
        );
        assert_eq!((split.len(), split.short.len()), (50, 27));
        split.pack();
        for (key, value) in &one {
            assert_eq!(split[key], *value);
            let range: Vec<_> = split.range(*key, *key).collect();
            assert_eq!(range, [(*key, value)]);
            assert_eq!(
                split.remove_if(key, |value| value % 2 == 0).is_some(),
                value % 2 == 0
            );
        }
        split.retain(|key| key.address().is_none());
        assert_eq!(split.values().copied().collect::<Vec<_>>(), [49]);
    }
}
