//! How following goes, for status pages and health checks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How following goes, by kind of object.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Services.
    pub services: Followed,
    /// EndpointSlices.
    pub endpoint_slices: Followed,
    /// Our own Node.
    pub node: Followed,
    /// ServiceCIDRs.
    pub service_cidrs: Followed,
    /// All Nodes, while asked for.
    pub nodes: Followed,
}

impl Status {
    /// Whether all that traffic depends on was seen completely: Services and EndpointSlices.
    pub fn is_synced(&self) -> bool {
        self.services.is_synced() && self.endpoint_slices.is_synced()
    }

    /// Each kind with its name, in the plural.
    pub fn kinds(&self) -> [(&'static str, &Followed); 5] {
        [
            ("Services", &self.services),
            ("EndpointSlices", &self.endpoint_slices),
            ("our Node", &self.node),
            ("ServiceCIDRs", &self.service_cidrs),
            ("Nodes", &self.nodes),
        ]
    }
}

/// How following one kind of object goes.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// What is going on.
    pub state: State,
    /// When the last complete view was told; `None` before the first.
    pub synced: Option<Instant>,
    /// When anything was last heard from the server: a list, a change, a bookmark. No more than
    /// [`Timeouts::silence`](super::Timeouts::silence) ago while all is well.
    pub heard: Option<Instant>,
    /// When it failed the last time, and why.
    pub failed: Option<(Instant, String)>,
    /// How many complete views were told.
    pub lists: u64,
    /// How many changes of single objects were told.
    pub changes: u64,
    /// How many attempts to list or watch failed.
    pub failures: u64,
}

impl Followed {
    /// Whether all objects of the kind were seen at least once.
    pub fn is_synced(&self) -> bool {
        self.synced.is_some()
    }
}

/// What is going on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Not asked for.
    #[default]
    Off,
    /// All objects are being fetched.
    Listing,
    /// Changes arrive as they happen.
    Watching,
    /// Something failed; it is tried again soon.
    Waiting,
    /// The server has no such objects, or withholds them, which does no harm; looked for again from
    /// time to time.
    Absent,
}

/// Where followers write down how it goes.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) services: Entry,
    pub(super) endpoint_slices: Entry,
    pub(super) node: Entry,
    pub(super) service_cidrs: Entry,
    pub(super) nodes: Entry,
}

impl Board {
    pub(super) fn status(&self) -> Status {
        Status {
            services: self.services.read(),
            endpoint_slices: self.endpoint_slices.read(),
            node: self.node.read(),
            service_cidrs: self.service_cidrs.read(),
            nodes: self.nodes.read(),
        }
    }
}

/// One kind's place on the board.
#[derive(Debug, Default)]
pub(super) struct Entry(Mutex<Followed>);

impl Entry {
    fn read(&self) -> Followed {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        // Plain data: whole whatever happened to a writer.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_synced(&self) -> bool {
        self.lock().is_synced()
    }

    pub(super) fn state(&self, state: State) {
        self.lock().state = state;
    }

    pub(super) fn heard(&self) {
        self.lock().heard = Some(Instant::now());
    }

    pub(super) fn changed(&self) {
        self.lock().changes += 1;
    }

    pub(super) fn listed(&self) {
        let mut followed = self.lock();
        followed.synced = Some(Instant::now());
        followed.lists += 1;
    }

    /// Takes note of a failure; whether it is another one than before.
    pub(super) fn failed(&self, why: String) -> bool {
        let mut followed = self.lock();
        followed.state = State::Waiting;
        followed.failures += 1;
        let last = followed.failed.replace((Instant::now(), why));
        let now = followed.failed.as_ref();
        last.map(|(_, why)| why).as_ref() != now.map(|(_, why)| why)
    }

    /// Starts over.
    pub(super) fn clear(&self) {
        *self.lock() = Followed::default();
    }
}
