//! Destinations: the servers behind a virtual server.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::stats::Stats;

/// What identifies a destination inside its virtual server: its address (with family) and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationKey {
    /// The server's address; its family may differ from the service's for tunnels only.
    pub address: IpAddr,
    /// The server's port; 0 = the port the client addressed.
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

/// How packets reach a destination (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Forwarding {
    /// Address and port are rewritten (NAT), 0.
    #[default]
    Masquerade,
    /// Delivered to a local process, 1.
    Local,
    /// Encapsulated, 2; see [`Tunnel`].
    Tunnel,
    /// Sent unchanged to the server's link address (direct return), 3.
    Route,
    /// Sent unchanged to the original destination, 4.
    Bypass,
    /// A value the kernel stores but has no transmitter for (5 to 7).
    Other(u32),
}

impl From<u32> for Forwarding {
    fn from(number: u32) -> Self {
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

impl From<Forwarding> for u32 {
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
    /// IP in IP, 0.
    #[default]
    Ipip,
    /// Generic UDP encapsulation, 1.
    Gue,
    /// GRE without key, 2.
    Gre,
    /// A value this crate does not know.
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

/// Tunnel parameters; meaningful with [`Forwarding::Tunnel`] and stored by the kernel in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tunnel {
    /// The encapsulation.
    pub kind: TunnelKind,
    /// The UDP destination port of GUE; 0 for the others.
    pub port: u16,
    /// Checksum flags; unknown bits are kept.
    pub flags: TunnelFlags,
}

/// Tunnel checksum flags (`IP_VS_TUNNEL_ENCAP_FLAG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelFlags(u16);

impl TunnelFlags {
    /// The outer checksum is filled in.
    pub const CHECKSUM: Self = Self(0x0001);
    /// Remote checksum offload (GUE).
    pub const REMOTE_CHECKSUM: Self = Self(0x0002);

    /// The flags with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The bits as the kernel numbers them.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

/// A destination as one asks the kernel for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// What identifies it inside its service.
    pub key: DestinationKey,
    /// How packets reach it.
    pub forwarding: Forwarding,
    /// Its share of new connections, 0 to 2,147,483,647; 0 = no new connections, existing ones continue.
    pub weight: u32,
    /// Connections above which it is overloaded and gets no new ones; 0 = no limit, at most 2,147,483,647.
    pub upper_threshold: u32,
    /// Connections below which an overloaded one recovers; 0 = three quarters of the upper; never above the upper.
    pub lower_threshold: u32,
    /// Tunnel parameters.
    pub tunnel: Tunnel,
}

impl Destination {
    /// A masqueraded destination without thresholds.
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
    /// Its definition.
    pub destination: Destination,
    /// Connections in an active state, live.
    pub active_connections: u32,
    /// The other connections, live.
    pub inactive_connections: u32,
    /// Persistence templates, live.
    pub persistent_connections: u32,
    /// Its traffic; refreshed by the kernel every 2 seconds.
    pub stats: Stats,
}
