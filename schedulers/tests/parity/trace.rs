//! A trace: the events and picks of a kernel's scheduler. [`text`] reads and writes it.

use std::net::SocketAddr;

mod text;

/// The events and picks of one scheduler on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The kernel's name of the scheduler.
    pub(crate) scheduler: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The kernel's load formula and threshold rule.
    pub(crate) flavour: Flavour,
    /// Virtual servers, independent of each other.
    pub(crate) scenarios: Vec<Scenario>,
}

/// The history of one virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    /// 4 or 6.
    pub(crate) family: u8,
    /// The flags of `sh` and `mh`.
    pub(crate) flags: Flags,
    /// `lblc_expiration` and `lblcr_expiration`.
    pub(crate) expiration_secs: u32,
    /// A description of the traffic.
    pub(crate) stimulus: String,
    /// The events, in order.
    pub(crate) events: Vec<Event>,
}

/// A load formula; both count 256 per active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Plus 1 per connection: 6.1.183 and later.
    Total,
    /// Plus 1 per inactive connection: earlier kernels.
    Classic,
}

/// The scheduler's flags of a virtual server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The source port is hashed, too.
    pub(crate) port: bool,
    /// If the hashed server is not eligible, others are tried.
    pub(crate) fallback: bool,
}

/// A server within its scenario; prints as `a`, `b`, .. `z`, `aa`, ..
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(pub(crate) u16);

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A server is added at the head of the list.
    Add(Name, SocketAddr, u32, Limits),
    /// A server is removed.
    Remove(Name),
    /// The weight and thresholds of a server are set, perhaps to the same values.
    Write(Name, u32, Limits),
    /// The connection counts of a server changed.
    Connections(Name, Connections),
    /// The overload mark of a server changed.
    Overload(Name, bool),
    /// A new connection, and the server that got it.
    Pick(Pick, Option<Name>),
}

/// Connection thresholds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// From this number on the server is overloaded; 0 means no limit.
    pub(crate) upper: u32,
    /// Below this number the mark is cleared; 0 means three quarters of the upper threshold.
    pub(crate) lower: u32,
}

/// The connection counts of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Connections in an active state.
    pub(crate) active: u32,
    /// All other connections.
    pub(crate) inactive: u32,
}

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The client.
    pub(crate) source: SocketAddr,
    /// The address and port that it connects to.
    pub(crate) destination: SocketAddr,
    /// Milliseconds since the virtual server was created; never decreases.
    pub(crate) at_ms: u64,
}

impl Scenario {
    /// Returns the number of picks.
    pub(crate) fn picks(&self) -> usize {
        let is_pick = |event: &&Event| matches!(event, Event::Pick(..));
        self.events.iter().filter(is_pick).count()
    }
}
