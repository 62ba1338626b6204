//! Keys of sets and maps.

use std::fmt;

use crate::value::{KeyBytes, KeyType, PackedKey, Value};

/// A key: one value, or several concatenated.
///
/// A large table has 100,000 of three or four parts. So these are bytes and not values. The order of the bytes is that of the
/// values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(PackedKey);

impl Key {
    /// Returns the key with these parts.
    pub fn new(parts: impl IntoIterator<Item = Value>) -> Self {
        let mut packed = PackedKey::new();
        parts.into_iter().for_each(|part| part.pack(&mut packed));
        Self(packed)
    }

    /// Returns its parts.
    pub fn parts(&self) -> impl Iterator<Item = Value> + '_ {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (value, after) = Value::unpack(rest)?;
            rest = after;
            Some(value)
        })
    }

    /// Returns its bytes for the kernel. In a concatenation, each part is padded to a multiple of 4.
    pub(crate) fn encode(&self) -> KeyBytes {
        let mut bytes = KeyBytes::new();
        let mut parts = self.parts().peekable();
        let first = parts.next();
        let is_concatenated = parts.peek().is_some();
        for part in first.into_iter().chain(parts) {
            part.encode(&mut bytes);
            if is_concatenated {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        bytes
    }

    /// Returns the key with these types and bytes; `None` if no key has them.
    pub(crate) fn decode(types: &[KeyType], mut bytes: &[u8]) -> Option<Self> {
        let mut packed = PackedKey::new();
        for part in types {
            let (value, rest) = bytes.split_at_checked(part.length())?;
            Value::decode(*part, value)?.pack(&mut packed);
            let padding = match types.len() {
                1 => 0,
                _ => part.length().next_multiple_of(4) - part.length(),
            };
            bytes = rest.get(padding..)?;
        }
        bytes.is_empty().then_some(Self(packed))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts().enumerate() {
            if index > 0 {
                f.write_str(" . ")?;
            }
            part.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use net::{Family, Protocol};

    #[test]
    fn the_parts_of_a_concatenation_are_padded() {
        let address = Value::V4(Ipv4Addr::new(10, 96, 0, 1));
        let key = Key::new([address, Value::Protocol(Protocol::Udp), Value::Port(53)]);
        assert_eq!(key.to_string(), "10.96.0.1 . udp . 53");
        assert_eq!(key.encode()[..], [10, 96, 0, 1, 17, 0, 0, 0, 0, 53, 0, 0]);
        let types = [
            KeyType::Address(Family::V4),
            KeyType::Protocol,
            KeyType::Port,
        ];
        assert_eq!(Key::decode(&types, &key.encode()), Some(key));
        let only = Key::new([Value::Port(53)]);
        assert_eq!(only.encode()[..], [0, 53]);
        assert_eq!(Key::decode(&types[2..], &only.encode()), Some(only));
    }

    #[test]
    fn keys_are_ordered_by_their_values() {
        let addresses =
            [[10, 0, 0, 9], [10, 0, 1, 0], [192, 0, 2, 1]].map(|it| Value::V4(it.into()));
        let wide = [1, 0x1_0000].map(|it: u128| Value::V6(it.into()));
        let name = |name| Value::interface(name).unwrap();
        let lists = [
            addresses.to_vec(),
            wide.to_vec(),
            Protocol::ALL.map(Value::Protocol).to_vec(),
            [1, 255, 256, 65_535].map(Value::Port).to_vec(),
            [0, 255, 256, 0x1_0000].map(Value::Mark).to_vec(),
            vec![name("eth1"), name("eth10"), name("eth2")],
        ];
        for values in lists {
            assert!(values.is_sorted());
            let keys: Vec<Key> = values.iter().map(|it| Key::new([*it, *it])).collect();
            assert!(keys.is_sorted(), "{values:?}");
            for (key, value) in keys.iter().zip(&values) {
                assert!(key.parts().eq([*value, *value]), "{key}");
            }
        }
    }
}
