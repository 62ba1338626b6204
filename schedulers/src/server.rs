//! A server: the state that the kernel keeps per destination.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use crate::options::Flavour;
use crate::thresholds::Thresholds;

/// The greatest weight. The kernel's weights are signed, and it rejects negative ones.
pub const WEIGHT_MAX: u32 = i32::MAX.unsigned_abs();

/// Identifies a server of one [`Servers`](crate::Servers).
///
/// A removed server keeps its id while it has connections. If it is added again before they end, it has
/// the same id. After a server is forgotten, its id is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId {
    pub(crate) slot: u32,
    pub(crate) generation: NonZeroU32,
}

impl ServerId {
    /// Returns a small number, unique among the servers that exist: an index for tables of the caller.
    ///
    /// It is always below [`Servers::slots`](crate::Servers::slots). After the server is forgotten,
    /// another server may get the same number.
    pub fn index(self) -> usize {
        self.slot as usize
    }
}

/// A server, as schedulers see it.
///
/// [`Servers`](crate::Servers) owns it and has at most one per address and port.
#[derive(Clone, Debug)]
pub struct Server {
    pub(crate) endpoint: Endpoint,
    pub(crate) weight: i32,
    pub(crate) last_weight: i32,
    pub(crate) active: u32,
    pub(crate) inactive: u32,
    pub(crate) thresholds: Thresholds,
    pub(crate) overloaded: bool,
    pub(crate) listed: bool,
}

impl Server {
    /// Returns the count of active connections, or of inactive ones.
    pub(crate) fn count_mut(&mut self, active: bool) -> &mut u32 {
        if active {
            &mut self.active
        } else {
            &mut self.inactive
        }
    }

    pub(crate) fn new(endpoint: Endpoint, weight: i32) -> Self {
        Self {
            endpoint,
            weight,
            last_weight: weight,
            active: 0,
            inactive: 0,
            thresholds: Thresholds::default(),
            overloaded: false,
            listed: true,
        }
    }

    /// Returns the address.
    pub fn address(&self) -> IpAddr {
        self.endpoint.address
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }

    /// Returns the weight, at most [`WEIGHT_MAX`]. A server of weight 0 gets no new connections.
    pub fn weight(&self) -> u32 {
        self.weight.unsigned_abs()
    }

    /// Returns the last weight above 0 since the server was added; 0 if there was none. Only mh uses it.
    pub fn last_weight(&self) -> u32 {
        self.last_weight.unsigned_abs()
    }

    /// Returns the number of active connections: for TCP, from the first SYN to the first FIN or RST.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Returns the number of all other connections; for UDP, of all connections.
    pub fn inactive(&self) -> u32 {
        self.inactive
    }

    /// Returns the connection thresholds.
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// Returns whether the server has the overload mark (`IP_VS_DEST_F_OVERLOAD`).
    ///
    /// A marked server gets no new connections.
    pub fn is_overloaded(&self) -> bool {
        self.overloaded
    }

    /// Returns whether the server is in the list (`IP_VS_DEST_F_AVAILABLE`).
    ///
    /// A removed server is not listed, but exists as long as it has connections.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Returns whether the server may get new connections: weight above 0 and not overloaded.
    pub fn is_eligible(&self) -> bool {
        self.weight > 0 && !self.overloaded
    }

    /// Returns the load that lc, wlc, lblc, lblcr and twos compare.
    ///
    /// [`Flavour::Total`]: 256 per active connection plus 1 per connection.
    /// [`Flavour::Classic`]: 256 per active connection plus 1 per inactive connection.
    ///
    /// Like the kernel (`ip_vs_dest_conn_overhead`, `include/net/ip_vs.h`) it computes in signed 32 bits
    /// that wrap, because wlc's picks beyond 2<sup>23</sup> active connections depend on the overflow.
    pub fn overhead(&self, flavour: Flavour) -> i32 {
        let rest = match flavour {
            Flavour::Total => self.active.wrapping_add(self.inactive),
            Flavour::Classic => self.inactive,
        };
        (self.active << 8).wrapping_add(rest).cast_signed()
    }

    pub(crate) fn connections(&self) -> u32 {
        self.active.saturating_add(self.inactive)
    }
}

/// The address and port that identify a server in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self {
            address: address.ip(),
            port: address.port(),
        }
    }
}
