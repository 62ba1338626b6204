//! Version and settings of IPVS in a network namespace.

/// The version of IPVS and the size of its connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The version of IPVS (not of Linux): major, minor, patch. 1.2.1 since 2005.
    pub version: (u8, u8, u8),
    /// The number of buckets of the connection table.
    ///
    /// Since Linux 7.1 each namespace has its own table, and the table grows. The number is the
    /// current one, and 0 before the first virtual server is added.
    pub connection_table_size: u32,
}

/// The timeouts of connections without traffic, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp_secs: u32,
    /// TCP connections in state FIN_WAIT.
    pub tcp_fin_secs: u32,
    /// UDP flows.
    pub udp_secs: u32,
}
