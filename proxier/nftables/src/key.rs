//! Keys of sets and maps.

use std::fmt;

use smallvec::SmallVec;

use crate::value::{KeyBytes, KeyType, Value};

/// A key: one value, or several concatenated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[Value; 1]>);

impl Key {
    /// Returns the key with these parts.
    pub fn new(parts: impl IntoIterator<Item = Value>) -> Self {
        Self(parts.into_iter().collect())
    }

    /// Returns its parts.
    pub fn parts(&self) -> impl Iterator<Item = Value> + '_ {
        self.0.iter().copied()
    }

    /// Returns its bytes. In a concatenation, each part is padded to a multiple of 4.
    pub(crate) fn encode(&self) -> KeyBytes {
        let mut bytes = KeyBytes::new();
        for part in &self.0 {
            part.encode(&mut bytes);
            if self.0.len() > 1 {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        bytes
    }

    /// Returns the key with these types and bytes; `None` if no key has them.
    pub(crate) fn decode(types: &[KeyType], mut bytes: &[u8]) -> Option<Self> {
        let mut parts = SmallVec::new();
        for part in types {
            let (value, rest) = bytes.split_at_checked(part.length())?;
            parts.push(Value::decode(*part, value)?);
            let padding = match types.len() {
                1 => 0,
                _ => part.length().next_multiple_of(4) - part.length(),
            };
            bytes = rest.get(padding..)?;
        }
        bytes.is_empty().then_some(Self(parts))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.0.iter().enumerate() {
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
}
