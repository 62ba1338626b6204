//! Frontends: the protocol, address and port that clients of a Service use.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::cluster::model::{Family, Protocol};

/// Protocol, address and port that clients of a Service use; prints as `TCP 10.96.0.1:443`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl Frontend {
    /// Returns the range of all frontends at `address`: frontends are ordered by address first.
    pub(crate) fn range_at(address: IpAddr) -> RangeInclusive<Self> {
        let at = |protocol, port| Self {
            address,
            protocol,
            port,
        };
        at(Protocol::Tcp, 0)..=at(Protocol::Sctp, u16::MAX)
    }

    /// Returns the family of the address.
    pub fn family(&self) -> Family {
        self.address.into()
    }

    /// Returns whether only a relay can serve it.
    ///
    /// The kernel drops packets that leave a loopback address for an endpoint (`ip_route_output_key_hash_rcu`, martian
    /// sources).
    pub fn needs_relay(&self) -> bool {
        self.address.is_loopback()
    }

    /// Returns address and port.
    pub fn socket(&self) -> SocketAddr {
        (self.address, self.port).into()
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, self.socket())
    }
}
