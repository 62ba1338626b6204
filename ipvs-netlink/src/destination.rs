//! Destinations: the real servers of a virtual server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::stats::Stats;

/// The key of a destination within its virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationKey {
    /// The address; only a tunnel may have another family than the virtual server.
    pub address: IpAddr,
    /// The port; 0 means the port that the client connects to.
    pub port: u16,
}

impl fmt::Display for DestinationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

impl From<SocketAddr> for DestinationKey {
    fn from(address: SocketAddr) -> Self {
        Self {
            address: address.ip(),
            port: address.port(),
        }
    }
}

/// The forwarding method of a destination (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Forwarding {
    /// NAT: the kernel rewrites address and port (0).
    #[default]
    Masquerade,
    /// Delivers packets to a local process (1).
    Local,
    /// Encapsulates packets as [`Tunnel`] describes (2).
    Tunnel,
    /// Direct routing: sends packets unchanged, with the destination as next hop (3).
    Route,
    /// Sends packets unchanged to their original destination address (4).
    Bypass,
    /// A value that the kernel stores but cannot transmit with (5 to 7).
    Other(u8),
}

impl From<u8> for Forwarding {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Masquerade,
            1 => Self::Local,
            2 => Self::Tunnel,
            3 => Self::Route,
            4 => Self::Bypass,
            other => Self::Other(other),
        }
    }
}

impl From<Forwarding> for u8 {
    fn from(forwarding: Forwarding) -> Self {
        match forwarding {
            Forwarding::Masquerade => 0,
            Forwarding::Local => 1,
            Forwarding::Tunnel => 2,
            Forwarding::Route => 3,
            Forwarding::Bypass => 4,
            Forwarding::Other(number) => number,
        }
    }
}

/// The encapsulation of [`Forwarding::Tunnel`] (`IP_VS_CONN_F_TUNNEL_TYPE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TunnelKind {
    /// IP in IP (0).
    #[default]
    Ipip,
    /// Generic UDP encapsulation (1).
    Gue,
    /// GRE without key (2).
    Gre,
    /// A value that this crate does not know.
    Other(u8),
}

impl From<u8> for TunnelKind {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Ipip,
            1 => Self::Gue,
            2 => Self::Gre,
            other => Self::Other(other),
        }
    }
}

impl From<TunnelKind> for u8 {
    fn from(kind: TunnelKind) -> Self {
        match kind {
            TunnelKind::Ipip => 0,
            TunnelKind::Gue => 1,
            TunnelKind::Gre => 2,
            TunnelKind::Other(number) => number,
        }
    }
}

/// Tunnel parameters.
///
/// The kernel stores them for every forwarding method and uses them for [`Forwarding::Tunnel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnel {
    /// The encapsulation.
    pub kind: TunnelKind,
    /// The UDP destination port of GUE, which must not be 0; 0 for other encapsulations.
    pub port: u16,
    /// The checksum flags, including bits that this crate does not know.
    pub flags: TunnelFlags,
}

/// Tunnel checksum flags (`IP_VS_TUNNEL_ENCAP_FLAG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelFlags(u16);

impl TunnelFlags {
    /// The kernel computes the outer checksum.
    pub const CHECKSUM: Self = Self(0x0001);
    /// Remote checksum offload (GUE).
    pub const REMOTE_CHECKSUM: Self = Self(0x0002);

    /// Returns the flags with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the kernel's bits.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// The configuration of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The key within its virtual server.
    pub key: DestinationKey,
    /// The forwarding method.
    pub forwarding: Forwarding,
    /// The share of new connections, 0 to 2,147,483,647.
    ///
    /// With 0 the destination gets no new connections, and existing ones continue.
    pub weight: u32,
    /// The number of connections at which the destination stops getting new ones; 0 means no limit.
    ///
    /// At most 2,147,483,647. Active and inactive connections both count.
    pub upper_threshold: u32,
    /// The number of connections below which an overloaded destination gets new ones again.
    ///
    /// 0 means three quarters of the upper threshold. It must not exceed the upper threshold.
    pub lower_threshold: u32,
    /// The tunnel parameters.
    pub tunnel: Tunnel,
}

impl Destination {
    /// Returns a masqueraded destination without thresholds.
    pub fn new(key: DestinationKey, weight: u32) -> Self {
        Self {
            key,
            forwarding: Forwarding::Masquerade,
            weight,
            upper_threshold: 0,
            lower_threshold: 0,
            tunnel: Tunnel::default(),
        }
    }
}

/// A destination as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationEntry {
    /// The configuration.
    pub destination: Destination,
    /// The current number of active connections.
    ///
    /// A TCP connection is active while it is established or being established, an SCTP association
    /// while it is established. A UDP flow is never active.
    pub active_connections: u32,
    /// The current number of all other connections.
    pub inactive_connections: u32,
    /// The current number of persistence templates.
    pub persistent_connections: u32,
    /// The traffic counters, which the kernel updates every 2 seconds.
    pub stats: Stats,
}
