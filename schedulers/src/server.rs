//! One candidate: what the kernel keeps per destination.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use crate::options::Flavour;
use crate::thresholds::Thresholds;

/// The greatest weight; the kernel's weights are signed, and it refuses negative ones.
pub const WEIGHT_MAX: u32 = i32::MAX.unsigned_abs();

/// Names a server of one [`Servers`](crate::Servers).
///
/// A removed server keeps its id while it has connections, and has the same again when it is added
/// back meanwhile. An id whose server is gone for good names nothing, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId {
    pub(crate) slot: u32,
    pub(crate) generation: NonZeroU32,
}

impl ServerId {
    /// A small number, unique among the servers that exist: an index into a table beside the set.
    ///
    /// Always below [`Servers::slots`](crate::Servers::slots); used again for another server once
    /// this one is gone.
    pub fn index(self) -> usize {
        self.slot as usize
    }
}

/// A server, as schedulers see it.
///
/// # Shape
/// Owned by [`Servers`](crate::Servers), one per address and port.
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
    /// The count of connections in an active state, or of the others.
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

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.endpoint.address
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }

    /// The weight, at most [`WEIGHT_MAX`]. 0: gets no new connections.
    pub fn weight(&self) -> u32 {
        self.weight.unsigned_abs()
    }

    /// The weight it was added with or, later, its last weight that was not 0. Only mh asks.
    pub fn last_weight(&self) -> u32 {
        self.last_weight.unsigned_abs()
    }

    /// Connections in an active state: for TCP, from the first SYN to the first FIN or RST.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// All other connections; for UDP, all connections.
    pub fn inactive(&self) -> u32 {
        self.inactive
    }

    /// Its connection thresholds.
    pub fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// Whether it is marked overloaded (`IP_VS_DEST_F_OVERLOAD`): it gets no new connections.
    pub fn is_overloaded(&self) -> bool {
        self.overloaded
    }

    /// Whether it is in the set (`IP_VS_DEST_F_AVAILABLE`), and not merely remembered because
    /// connections to it remain.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// Whether it may get a new connection: weight above 0 and not overloaded.
    pub fn is_eligible(&self) -> bool {
        self.weight > 0 && !self.overloaded
    }

    /// The load that lc, wlc, lblc, lblcr and twos compare, as the kernel computes it: in 32 bits,
    /// signed, wrapping.
    ///
    /// [`Flavour::Total`]: 256 per active connection plus one per connection;
    /// [`Flavour::Classic`]: 256 per active connection plus one per inactive connection.
    /// Kernel: `ip_vs_dest_conn_overhead`, `include/net/ip_vs.h`.
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

/// What makes two servers of one set the same server.
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
