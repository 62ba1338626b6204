//! What keys and data of sets consist of.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::model::{Family, Protocol};

/// The type of a key, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// `ipv4_addr` or `ipv6_addr`.
    Address(Family),
    /// `inet_proto`.
    Protocol,
    /// `inet_service`.
    Port,
    /// `mark`.
    Mark,
    /// What `ct id` is: a number that the kernel gives a tracked connection.
    ConnectionId,
}

impl Type {
    /// The number by which nft knows it, so that it can print our sets. To the kernel it means
    /// nothing.
    pub(super) fn number(self) -> u32 {
        match self {
            Self::ConnectionId => 4,
            Self::Address(Family::V4) => 7,
            Self::Address(Family::V6) => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Mark => 19,
        }
    }

    /// Bytes of a value, without padding.
    pub(super) fn length(self) -> usize {
        match self {
            Self::Address(Family::V6) => 16,
            Self::Address(Family::V4) | Self::Mark | Self::ConnectionId => 4,
            Self::Port => 2,
            Self::Protocol => 1,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address(Family::V4) => "ipv4_addr",
            Self::Address(Family::V6) => "ipv6_addr",
            Self::Protocol => "inet_proto",
            Self::Port => "inet_service",
            Self::Mark => "mark",
            Self::ConnectionId => "ct id",
        })
    }
}

/// A value of a [`Type`]; prints as nft prints it.
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
}

impl Value {
    /// Appends the bytes that the kernel compares: network order, but for marks.
    pub(super) fn encode(self, bytes: &mut Vec<u8>) {
        match self {
            Self::V4(address) => bytes.extend_from_slice(&address.octets()),
            Self::V6(address) => bytes.extend_from_slice(&address.octets()),
            Self::Protocol(protocol) => bytes.push(protocol.number()),
            Self::Port(port) => bytes.extend_from_slice(&port.to_be_bytes()),
            Self::Mark(mark) => bytes.extend_from_slice(&mark.to_ne_bytes()),
        }
    }
}

impl Value {
    /// The value of type `of` that has these bytes, if one has.
    pub(super) fn decode(of: Type, bytes: &[u8]) -> Option<Self> {
        Some(match of {
            Type::Address(Family::V4) => Self::V4(<[u8; 4]>::try_from(bytes).ok()?.into()),
            Type::Address(Family::V6) => Self::V6(<[u8; 16]>::try_from(bytes).ok()?.into()),
            Type::Protocol => {
                let [number] = bytes.try_into().ok()?;
                Self::Protocol(Protocol::from_number(number)?)
            }
            Type::Port => Self::Port(u16::from_be_bytes(bytes.try_into().ok()?)),
            Type::Mark => Self::Mark(u32::from_ne_bytes(bytes.try_into().ok()?)),
            // Packets make these.
            Type::ConnectionId => return None,
        })
    }
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
            Self::Protocol(protocol) => f.write_str(name(*protocol)),
            Self::Port(port) => port.fmt(f),
            Self::Mark(mark) => write!(f, "{mark:#010x}"),
        }
    }
}

/// What nft calls a protocol.
pub(super) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}
