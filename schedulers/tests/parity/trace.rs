//! What a kernel's scheduler did: a sequence of events and picks. [`text`] writes and reads it.

use std::net::SocketAddr;

mod text;

/// What one kernel's scheduler did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The kernel's name of the scheduler.
    pub(crate) scheduler: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// How that kernel weighs connections.
    pub(crate) flavour: Flavour,
    /// Virtual servers, each with a life of its own.
    pub(crate) scenarios: Vec<Scenario>,
}

/// The life of one virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    /// 4 or 6.
    pub(crate) family: u8,
    /// The flags of `sh` and `mh`.
    pub(crate) flags: Flags,
    /// `lblc_expiration` and `lblcr_expiration`.
    pub(crate) expiration_secs: u32,
    /// What traffic it was, in words.
    pub(crate) stimulus: String,
    /// What happened, in order.
    pub(crate) events: Vec<Event>,
}

/// How connections are weighed; both count 256 per active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Plus all connections: since 6.1.183.
    Total,
    /// Plus the inactive ones: before.
    Classic,
}

/// The scheduler's flags of a virtual server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    /// The source's port takes part in the hash.
    pub(crate) port: bool,
    /// Another server is looked for when the hashed one is unavailable.
    pub(crate) fallback: bool,
}

/// A server within its scenario; prints as `a`, `b`, .. `z`, `aa`, ..
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(pub(crate) u16);

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A server joins, at the head of the list.
    Add(Name, SocketAddr, u32, Limits),
    /// It leaves.
    Remove(Name),
    /// It is written again, perhaps as it is.
    Write(Name, u32, Limits),
    /// Its connections, where they changed.
    Connections(Name, Connections),
    /// Its overloaded flag, where it changed.
    Overload(Name, bool),
    /// A new connection, and where it went.
    Pick(Pick, Option<Name>),
}

/// How many connections a server may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// From this many on it is overloaded; 0 = never.
    pub(crate) upper: u32,
    /// Below this many it is so no more; 0 = three quarters of the upper one.
    pub(crate) lower: u32,
}

/// A server's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// In an active state.
    pub(crate) active: u32,
    /// The others.
    pub(crate) inactive: u32,
}

/// A new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The client.
    pub(crate) source: SocketAddr,
    /// The address that it asked for.
    pub(crate) destination: SocketAddr,
    /// Milliseconds since the virtual server was made; never decreases.
    pub(crate) at_ms: u64,
}

impl Scenario {
    /// How many picks it has.
    pub(crate) fn picks(&self) -> usize {
        let is_pick = |event: &&Event| matches!(event, Event::Pick(..));
        self.events.iter().filter(is_pick).count()
    }
}
