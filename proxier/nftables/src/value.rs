//! The values in keys and data of sets, and their types.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

use crate::sys::IFNAMSIZ;
use net::{Family, Protocol};

/// The bytes of a key. The longest one of our sets, a pair of IPv6 addresses, fits without an allocation.
pub(crate) type KeyBytes = SmallVec<[u8; 32]>;

/// The parts of a key as [`Value::pack`] writes them. Those of a slot of an IPv4 frontend fit without an allocation.
pub(crate) type PackedKey = SmallVec<[u8; 16]>;

/// The type of a key or of one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyType {
    /// `ipv4_addr` or `ipv6_addr`.
    Address(Family),
    /// `inet_proto`.
    Protocol,
    /// `inet_service`.
    Port,
    /// `mark`.
    Mark,
    /// The type of `ct id`, the kernel's number for a tracked connection.
    ConnectionId,
    /// `ifname`.
    Interface,
}

impl KeyType {
    /// Returns nft's number for the type (`enum datatypes`).
    ///
    /// nft needs it to print our sets. The kernel only stores it.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::ConnectionId => 4,
            Self::Address(Family::V4) => 7,
            Self::Address(Family::V6) => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
            Self::Interface => 41,
        }
    }

    /// Returns the number of bytes of a value, without padding.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Address(Family::V6) | Self::Interface => 16,
            Self::Address(Family::V4) | Self::Mark | Self::ConnectionId => 4,
            Self::Port => 2,
            Self::Protocol => 1,
        }
    }

    /// Returns the number of bytes of a key with these types. In a concatenation, each part is padded to a
    /// multiple of 4.
    pub(crate) fn length_of_key(types: &[Self]) -> usize {
        let length = |part: &Self| match types.len() {
            1 => part.length(),
            _ => part.length().next_multiple_of(4),
        };
        types.iter().map(length).sum()
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address(Family::V4) => "ipv4_addr",
            Self::Address(Family::V6) => "ipv6_addr",
            Self::Protocol => "inet_proto",
            Self::Port => "inet_service",
            Self::Mark => "mark",
            Self::ConnectionId => "ct id",
            Self::Interface => "ifname",
        })
    }
}

/// A value of a [`KeyType`]. Prints as in nft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
    /// A transport protocol.
    Protocol(Protocol),
    /// A port.
    Port(u16),
    /// A packet mark.
    Mark(u32),
    /// The name of an interface, padded with NUL.
    Interface([u8; IFNAMSIZ]),
}

impl Value {
    /// Returns the value of an interface's name; `None` if the kernel accepts no such name.
    pub fn interface(name: &str) -> Option<Self> {
        let mut bytes = [0; IFNAMSIZ];
        // The kernel's limit includes the NUL at the end of the name.
        let is_name = !name.is_empty() && name.len() < IFNAMSIZ;
        bytes
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        is_name.then_some(Self::Interface(bytes))
    }

    /// Appends the bytes that the kernel compares: marks in host order, the rest in network order.
    pub(crate) fn encode(self, bytes: &mut KeyBytes) {
        match self {
            Self::V4(address) => bytes.extend_from_slice(&address.octets()),
            Self::V6(address) => bytes.extend_from_slice(&address.octets()),
            Self::Protocol(protocol) => bytes.push(protocol.number()),
            Self::Port(port) => bytes.extend_from_slice(&port.to_be_bytes()),
            Self::Mark(mark) => bytes.extend_from_slice(&mark.to_ne_bytes()),
            Self::Interface(name) => bytes.extend_from_slice(&name),
        }
    }

    /// Appends the number of the type and the bytes of the value, whose order is that of the values.
    pub(crate) fn pack(self, packed: &mut PackedKey) {
        let mut add = |number: u8, value: &[u8]| {
            packed.push(number);
            packed.extend_from_slice(value);
        };
        match self {
            Self::V4(address) => add(0, &address.octets()),
            Self::V6(address) => add(1, &address.octets()),
            Self::Protocol(protocol) => add(2, &[protocol.number()]),
            Self::Port(port) => add(3, &port.to_be_bytes()),
            Self::Mark(mark) => add(4, &mark.to_be_bytes()),
            Self::Interface(name) => add(5, &name),
        }
    }

    /// Returns the first of the values that [`Value::pack`] appended, and the bytes after it; `None` without bytes.
    pub(crate) fn unpack(packed: &[u8]) -> Option<(Self, &[u8])> {
        let (number, rest) = packed.split_first()?;
        Some(match number {
            0 => first(rest, |octets: [u8; 4]| Self::V4(octets.into()))?,
            1 => first(rest, |octets: [u8; 16]| Self::V6(octets.into()))?,
            2 => {
                let ([number], rest) = rest.split_first_chunk()?;
                (Self::Protocol(Protocol::from_number(*number)?), rest)
            }
            3 => first(rest, |bytes| Self::Port(u16::from_be_bytes(bytes)))?,
            4 => first(rest, |bytes| Self::Mark(u32::from_be_bytes(bytes)))?,
            5 => first(rest, Self::Interface)?,
            _ => return None,
        })
    }

    /// Returns the value of type `kind` with these bytes; `None` if the type has no such value.
    pub(crate) fn decode(kind: KeyType, bytes: &[u8]) -> Option<Self> {
        Some(match kind {
            KeyType::Address(Family::V4) => Self::V4(<[u8; 4]>::try_from(bytes).ok()?.into()),
            KeyType::Address(Family::V6) => Self::V6(<[u8; 16]>::try_from(bytes).ok()?.into()),
            KeyType::Protocol => {
                let [number] = bytes.try_into().ok()?;
                Self::Protocol(Protocol::from_number(number)?)
            }
            KeyType::Port => Self::Port(u16::from_be_bytes(bytes.try_into().ok()?)),
            KeyType::Mark => Self::Mark(u32::from_ne_bytes(bytes.try_into().ok()?)),
            KeyType::Interface => Self::Interface(bytes.try_into().ok()?),
            // Only packets add elements with such keys, and these are never read.
            KeyType::ConnectionId => return None,
        })
    }
}

/// Returns the value with the first bytes, and the bytes after it.
fn first<const N: usize>(bytes: &[u8], value: fn([u8; N]) -> Value) -> Option<(Value, &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some((value(*first), rest))
}

impl From<std::net::IpAddr> for Value {
    fn from(address: std::net::IpAddr) -> Self {
        match address {
            std::net::IpAddr::V4(address) => Self::V4(address),
            std::net::IpAddr::V6(address) => Self::V6(address),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => address.fmt(f),
            Self::Protocol(protocol) => f.write_str(protocol_name(*protocol)),
            Self::Port(port) => port.fmt(f),
            Self::Mark(mark) => write!(f, "{mark:#010x}"),
            Self::Interface(name) => {
                let name = String::from_utf8_lossy(name);
                write!(f, "\"{}\"", name.trim_end_matches('\0'))
            }
        }
    }
}

/// Returns nft's name of a protocol.
pub(crate) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}
