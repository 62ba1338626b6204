//! Virtual servers: what a client addresses.

use std::fmt;
use std::net::IpAddr;

use crate::name::{EngineName, SchedulerName};
use crate::stats::Stats;

/// A transport protocol, by its IP protocol number.
///
/// The kernel accepts any number here but only schedules connections for TCP, UDP and SCTP; others are kept as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP, 6.
    Tcp,
    /// UDP, 17.
    Udp,
    /// SCTP, 132.
    Sctp,
    /// Any other number; never 6, 17 or 132 when made by [`From`].
    Other(u16),
}

impl From<u16> for Protocol {
    fn from(number: u16) -> Self {
        match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            other => Self::Other(other),
        }
    }
}

impl From<Protocol> for u16 {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
            Protocol::Other(number) => number,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.pad("TCP"),
            Self::Udp => f.pad("UDP"),
            Self::Sctp => f.pad("SCTP"),
            Self::Other(number) => f.pad(&format!("IP_{number}")),
        }
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// What identifies a virtual server in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ServiceKey {
    /// Packets of `protocol` to `address` and `port`.
    Address {
        /// The transport protocol.
        protocol: Protocol,
        /// The virtual address.
        address: IpAddr,
        /// The virtual port; 0 = every port (persistent services only).
        port: u16,
    },
    /// Packets of `family` that carry exactly this firewall mark, whatever their address.
    Mark {
        /// The address family the mark applies to; the same mark may exist once per family.
        family: Family,
        /// The whole 32-bit mark; never 0 (the kernel reads 0 as the plain service TCP 0.0.0.0:0).
        mark: u32,
    },
}

impl ServiceKey {
    /// The address family of the virtual server.
    pub fn family(&self) -> Family {
        match *self {
            Self::Address { address, .. } => address.into(),
            Self::Mark { family, .. } => family,
        }
    }

    /// The address of the virtual server, unless it has a firewall mark.
    pub fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::Address { address, .. } => Some(address),
            Self::Mark { .. } => None,
        }
    }
}

/// As the kernel's users write it: `TCP 10.96.0.1:443`, `UDP [fd00::1]:53`, `FWM 0x1 IPv6`.
impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Address {
                protocol,
                address,
                port,
            } => {
                write!(f, "{protocol} {}", std::net::SocketAddr::new(address, port))
            }
            Self::Mark {
                family: Family::V4,
                mark,
            } => write!(f, "FWM {mark:#x}"),
            Self::Mark {
                family: Family::V6,
                mark,
            } => write!(f, "FWM {mark:#x} IPv6"),
        }
    }
}

/// The flag bits of a virtual server (`IP_VS_SVC_F_*`); unknown bits are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceFlags(u32);

impl ServiceFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Client affinity is on; uses the timeout and mask of the service.
    pub const PERSISTENT: Self = Self(0x0001);
    /// Owned by the kernel: ignored on input, always set on output. [`Service`] never carries it.
    pub const HASHED: Self = Self(0x0002);
    /// One-packet scheduling (UDP only).
    pub const ONE_PACKET: Self = Self(0x0004);
    /// First scheduler flag; `sh` and `mh`: fall back to another server when the hashed one is unavailable.
    pub const SCHED1: Self = Self(0x0008);
    /// Second scheduler flag; `sh` and `mh`: the source port takes part in the hash.
    pub const SCHED2: Self = Self(0x0010);
    /// Third scheduler flag; unused by the kernel's own schedulers.
    pub const SCHED3: Self = Self(0x0020);

    /// The flags with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits as the kernel numbers them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags without the bits of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl std::ops::BitOr for ServiceFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which part of a client's address affinity looks at.
///
/// The kernel writes an IPv4 mask as four bytes in network order and an IPv6 one as a prefix length in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientMask {
    /// IPv4: `client AND mask`; need not be contiguous.
    V4(u32),
    /// IPv6: the leading bits, 1 to 128.
    V6(u32),
}

impl ClientMask {
    /// The whole client address: 255.255.255.255 or /128.
    pub const fn host(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4(u32::MAX),
            Family::V6 => Self::V6(128),
        }
    }
}

/// A virtual server as one asks the kernel for it.
///
/// # Invariant
/// `flags` never contains [`ServiceFlags::HASHED`] when it comes from the kernel, so that asked and observed compare equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// What identifies it.
    pub key: ServiceKey,
    /// The scheduler's name; `None` = the kernel's "none": bound to no scheduler, refuses new connections.
    pub scheduler: Option<SchedulerName>,
    /// Flag bits.
    pub flags: ServiceFlags,
    /// How long affinity lasts after a client's last connection, in seconds; 0 without affinity.
    ///
    /// The kernel multiplies it by its tick rate in 32 bits without a check: keep it at most 4,294,967.
    pub timeout_secs: u32,
    /// The part of the client's address that affinity looks at.
    pub client_mask: ClientMask,
    /// The persistence engine, for example `sip`.
    pub engine: Option<EngineName>,
}

impl Service {
    /// A virtual server without affinity, flags or engine.
    pub fn new(key: ServiceKey, scheduler: SchedulerName) -> Self {
        Self {
            key,
            scheduler: Some(scheduler),
            flags: ServiceFlags::NONE,
            timeout_secs: 0,
            client_mask: ClientMask::host(key.family()),
            engine: None,
        }
    }
}

/// A virtual server as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceEntry {
    /// Its definition.
    pub service: Service,
    /// Its traffic since creation or the last zeroing; refreshed by the kernel every 2 seconds.
    pub stats: Stats,
}
