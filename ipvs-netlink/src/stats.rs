//! Traffic counters.

/// The traffic of a virtual server or destination.
///
/// Decoded from the 64-bit attribute if the kernel sends it, else from the 32-bit one. The values
/// are up to 2 seconds old: the kernel's estimator updates them in that interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Scheduled connections.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Connections per second.
    pub connection_rate: u64,
    /// Packets per second from clients.
    pub packet_rate_in: u64,
    /// Packets per second to clients.
    pub packet_rate_out: u64,
    /// Bytes per second from clients.
    pub byte_rate_in: u64,
    /// Bytes per second to clients.
    pub byte_rate_out: u64,
}
