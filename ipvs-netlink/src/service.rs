//! Virtual servers (IPVS services).

use std::fmt;
use std::net::IpAddr;

use netlink::Family;

use crate::name::{EngineName, SchedulerName};
use crate::stats::Stats;

/// A transport protocol.
///
/// The kernel accepts every IP protocol number, but schedules only TCP, UDP and SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP (6).
    Tcp,
    /// UDP (17).
    Udp,
    /// SCTP (132).
    Sctp,
    /// Another protocol number; [`From`] never returns 6, 17 or 132 here.
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

/// The key of a virtual server in its network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ServiceKey {
    /// Matches packets of `protocol` to `address` and `port`.
    Address {
        /// The transport protocol.
        protocol: Protocol,
        /// The virtual address.
        address: IpAddr,
        /// The virtual port.
        ///
        /// 0 matches every port. The kernel then accepts connections only if the virtual server has
        /// affinity.
        port: u16,
    },
    /// Matches packets of `family` with this firewall mark, whatever their destination.
    Mark {
        /// The address family; each family has its own marks.
        family: Family,
        /// The firewall mark. All 32 bits of the packet's mark must equal it.
        ///
        /// Must not be 0: the kernel reads a key with mark 0 as the address TCP 0.0.0.0:0.
        mark: u32,
    },
}

impl ServiceKey {
    /// Returns the address family of the virtual server.
    pub fn family(&self) -> Family {
        match *self {
            Self::Address { address, .. } => address.into(),
            Self::Mark { family, .. } => family,
        }
    }

    /// Returns the address of the virtual server; `None` if it matches a firewall mark.
    pub fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::Address { address, .. } => Some(address),
            Self::Mark { .. } => None,
        }
    }
}

/// Formats like `ipvsadm -Ln`, but a mark in hexadecimal: `TCP 10.96.0.1:443`, `FWM 0x1 IPv6`.
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

/// The flags of a virtual server (`IP_VS_SVC_F_*`), including bits that this crate does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceFlags(u32);

impl ServiceFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Client affinity, with the timeout and the client mask of the virtual server.
    pub const PERSISTENT: Self = Self(0x0001);
    /// Internal to the kernel: ignored in requests, always set in answers.
    ///
    /// Decoding removes it, so a [`Service`] from the kernel never has it.
    pub const HASHED: Self = Self(0x0002);
    /// One-packet scheduling (UDP only).
    pub const ONE_PACKET: Self = Self(0x0004);
    /// Scheduler flag 1; `sh` and `mh`: use another destination if the hashed one is unavailable.
    pub const SCHED1: Self = Self(0x0008);
    /// Scheduler flag 2; `sh` and `mh`: include the client's port in the hash.
    pub const SCHED2: Self = Self(0x0010);
    /// Scheduler flag 3; no scheduler of the kernel's source tree uses it.
    pub const SCHED3: Self = Self(0x0020);

    /// Returns the flags with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the kernel's bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these flags without the bits of `other`.
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

/// The part of a client's address that identifies the client for affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientMask {
    /// The mask for IPv4 addresses; may be non-contiguous.
    V4(u32),
    /// The prefix length for IPv6 addresses, 1 to 128.
    V6(u32),
}

impl ClientMask {
    /// Returns the mask of the whole address: 255.255.255.255 or /128.
    pub const fn host(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4(u32::MAX),
            Family::V6 => Self::V6(128),
        }
    }
}

/// The configuration of a virtual server.
///
/// # Invariant
/// A `Service` that was read from the kernel does not have [`ServiceFlags::HASHED`], so it equals
/// the requested configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Service {
    /// The key.
    pub key: ServiceKey,
    /// The scheduler; `None`: the virtual server has no scheduler and refuses new connections.
    pub scheduler: Option<SchedulerName>,
    /// The flags.
    pub flags: ServiceFlags,
    /// The duration of affinity after a client's last new connection, in seconds.
    ///
    /// 0 without affinity, at most 4,294,967. The kernel multiplies the value by `HZ` in 32 bits
    /// and does not check for overflow: with `CONFIG_HZ=250`, 20,000,000 becomes 2,820,130.
    pub timeout_secs: u32,
    /// The part of the client's address that identifies the client for affinity.
    pub client_mask: ClientMask,
    /// The persistence engine, for example `sip`; `None`: no engine.
    pub engine: Option<EngineName>,
}

impl Service {
    /// Returns a virtual server without affinity, flags or persistence engine.
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
    /// The configuration.
    pub service: Service,
    /// The traffic since creation or the last reset, which the kernel updates every 2 seconds.
    pub stats: Stats,
}
