//! What holds for a whole network namespace.

/// What the kernel says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// IPVS's own version: major, minor, patch; 1.2.1 since 2005.
    pub version: (u8, u8, u8),
    /// Buckets of the connection table; since 7.1 of its current size, 0 before the first service.
    pub connection_table_size: u32,
}

/// How long connections without traffic are kept, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp_secs: u32,
    /// TCP connections that one side has closed.
    pub tcp_fin_secs: u32,
    /// UDP flows.
    pub udp_secs: u32,
}
