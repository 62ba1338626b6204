//! What is asked.

use std::net::IpAddr;
use std::time::Duration;

/// A new connection that needs a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's address.
    pub source: IpAddr,
    /// The client's port; 0 for protocols without ports.
    pub source_port: u16,
    /// The address that the client dialled.
    pub destination: IpAddr,
    /// The port that the client dialled; 0 for protocols without ports.
    pub destination_port: u16,
    /// The time, since any moment that stays the same; never decreasing.
    pub at: Duration,
}
