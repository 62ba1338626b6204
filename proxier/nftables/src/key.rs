//! Keys of sets and maps.

use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::value::{KeyBytes, KeyType, Value};
use net::Protocol;

/// A key: one value, or several concatenated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(KeyForm);

/// The form of a key.
///
/// A large cluster has hundreds of thousands of keys, nearly all of the first two forms. They need no memory of
/// their own. Equal keys have equal forms, because only [`Key::new`] chooses the form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum KeyForm {
    One(Value),
    Frontend(IpAddr, Protocol, u16),
    Many(Box<[Value]>),
}

impl Key {
    /// Returns the key with these parts.
    pub fn new(parts: impl IntoIterator<Item = Value>) -> Self {
        let mut parts = parts.into_iter();
        let (first, second, third, fourth) =
            (parts.next(), parts.next(), parts.next(), parts.next());
        Self(match (first, second, third, fourth) {
            (Some(only), None, ..) => KeyForm::One(only),
            (
                Some(Value::V4(address)),
                Some(Value::Protocol(protocol)),
                Some(Value::Port(port)),
                None,
            ) => KeyForm::Frontend(address.into(), protocol, port),
            (
                Some(Value::V6(address)),
                Some(Value::Protocol(protocol)),
                Some(Value::Port(port)),
                None,
            ) => KeyForm::Frontend(address.into(), protocol, port),
            _ => {
                let all = [first, second, third, fourth];
                KeyForm::Many(all.into_iter().flatten().chain(parts).collect())
            }
        })
    }

    /// Returns its parts.
    fn parts(&self) -> impl Iterator<Item = Value> + '_ {
        let (few, many): ([Option<Value>; 3], &[Value]) = match &self.0 {
            KeyForm::One(only) => ([Some(*only), None, None], &[]),
            KeyForm::Frontend(address, protocol, port) => {
                let (protocol, port) = (Value::Protocol(*protocol), Value::Port(*port));
                ([Some((*address).into()), Some(protocol), Some(port)], &[])
            }
            KeyForm::Many(all) => ([None; 3], all),
        };
        few.into_iter().flatten().chain(many.iter().copied())
    }

    /// Returns its bytes. In a concatenation, each part is padded to a multiple of 4.
    pub(crate) fn encode(&self) -> KeyBytes {
        let mut bytes = KeyBytes::new();
        if let KeyForm::One(only) = self.0 {
            only.encode(&mut bytes);
            return bytes;
        }
        for part in self.parts() {
            part.encode(&mut bytes);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    /// Returns the key with these types and bytes; `None` if no key has them.
    pub(crate) fn decode(types: &[KeyType], mut bytes: &[u8]) -> Option<Self> {
        let mut parts = SmallVec::<[Value; 3]>::new();
        for part in types {
            let (value, rest) = bytes.split_at_checked(part.length())?;
            parts.push(Value::decode(*part, value)?);
            let padding = match types.len() {
                1 => 0,
                _ => part.length().next_multiple_of(4) - part.length(),
            };
            bytes = rest.get(padding..)?;
        }
        bytes.is_empty().then(|| Self::new(parts))
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
    use super::*;

    const FRONTEND: [Value; 3] = [
        Value::V4(std::net::Ipv4Addr::new(10, 96, 0, 1)),
        Value::Protocol(Protocol::Udp),
        Value::Port(53),
    ];

    #[test]
    fn a_key_keeps_its_parts_in_every_form() {
        let v6 = Value::V6(std::net::Ipv6Addr::LOCALHOST);
        for parts in [
            &FRONTEND[..1],
            &FRONTEND[..2],
            &FRONTEND,
            &[v6, FRONTEND[1], FRONTEND[2]],
            &[FRONTEND[2], FRONTEND[1], FRONTEND[0]],
            &[FRONTEND[0], FRONTEND[1], FRONTEND[2], v6],
            &[FRONTEND[0], FRONTEND[1], FRONTEND[2], v6, v6],
        ] {
            let key = Key::new(parts.iter().copied());
            assert!(key.parts().eq(parts.iter().copied()), "{key}");
        }
    }

    #[test]
    fn the_key_of_a_frontend_needs_no_memory_of_its_own() {
        let key = Key::new(FRONTEND);
        assert!(matches!(key.0, KeyForm::Frontend(..)), "{key}");
        assert_eq!(key.to_string(), "10.96.0.1 . udp . 53");
        assert_eq!(key.encode()[..], [10, 96, 0, 1, 17, 0, 0, 0, 0, 53, 0, 0]);
        assert!(size_of::<Key>() <= 24);
    }
}
