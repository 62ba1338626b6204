//! The endpoints of a pool as others see them.

use schedulers::Thresholds;

/// The connection counts of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Established connections in both directions.
    pub active: u32,
    /// All other connections, such as half-closed ones, and UDP flows.
    pub inactive: u32,
}

/// An endpoint as it was added or set, and its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Its share of new connections.
    pub weight: u32,
    /// Its limits.
    pub thresholds: Thresholds,
    /// Its connections.
    pub counts: Counts,
}

/// The state of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointState {
    /// Its connections.
    pub counts: Counts,
    /// The connections that it got since it was added.
    pub connections: u64,
    /// Whether it gets no connections for a while, because it did not accept the last ones.
    pub is_ejected: bool,
}
