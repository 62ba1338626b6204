//! The facts about a new connection that a scheduler may use.

use std::net::IpAddr;
use std::time::Duration;

/// A new connection that needs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's address.
    pub source: IpAddr,
    /// The client's port; 0 for protocols without ports.
    pub source_port: u16,
    /// The address that the client connects to.
    pub destination: IpAddr,
    /// The port that the client connects to; 0 for protocols without ports.
    pub destination_port: u16,
    /// The time since a fixed moment of the caller's choice. It must never decrease.
    pub at: Duration,
}
