//! Synchronisation daemons, which copy the connection table to other machines.

use std::net::IpAddr;

use crate::name::InterfaceName;

/// The role of a synchronisation daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DaemonRole {
    /// Sends connections to the group (1).
    Master,
    /// Receives connections from the group (2).
    Backup,
    /// A value that this crate does not know.
    Other(u32),
}

impl From<u32> for DaemonRole {
    fn from(number: u32) -> Self {
        match number {
            1 => Self::Master,
            2 => Self::Backup,
            other => Self::Other(other),
        }
    }
}

impl From<DaemonRole> for u32 {
    fn from(role: DaemonRole) -> Self {
        match role {
            DaemonRole::Master => 1,
            DaemonRole::Backup => 2,
            DaemonRole::Other(number) => number,
        }
    }
}

/// A synchronisation daemon; at most one of each role runs in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Daemon {
    /// The role.
    pub role: DaemonRole,
    /// The interface for sending and receiving.
    pub interface: InterfaceName,
    /// The group id, 0 to 255: a backup ignores messages with another id, unless its own is 0.
    pub sync_id: u32,
    /// The maximum length of a message in bytes; `None`: derived from the interface's MTU.
    pub max_length: Option<u16>,
    /// The multicast group; `None`: 224.0.0.81.
    pub group: Option<IpAddr>,
    /// The UDP port; `None`: 8848.
    pub port: Option<u16>,
    /// The time to live of packets; `None`: 1.
    pub ttl: Option<u8>,
}

impl Daemon {
    /// Returns a daemon with the kernel's defaults.
    pub fn new(role: DaemonRole, interface: InterfaceName, sync_id: u32) -> Self {
        Self {
            role,
            interface,
            sync_id,
            max_length: None,
            group: None,
            port: None,
            ttl: None,
        }
    }
}
