//! The state of followers, for status pages and health checks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The status of the watch, by kind.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Services.
    pub services: KindStatus,
    /// EndpointSlices.
    pub endpoint_slices: KindStatus,
    /// Our own Node.
    pub node: KindStatus,
    /// ServiceCIDRs.
    pub service_cidrs: KindStatus,
    /// All Nodes, while a Service needs their locations.
    pub nodes: KindStatus,
}

impl Status {
    /// Returns whether Services and EndpointSlices were listed completely.
    pub fn is_synced(&self) -> bool {
        self.services.is_synced() && self.endpoint_slices.is_synced()
    }

    /// Returns each kind's plural name and status.
    pub fn kinds(&self) -> [(&'static str, &KindStatus); 5] {
        [
            ("Services", &self.services),
            ("EndpointSlices", &self.endpoint_slices),
            ("our Node", &self.node),
            ("ServiceCIDRs", &self.service_cidrs),
            ("Nodes", &self.nodes),
        ]
    }
}

/// The status of one kind's follower.
#[derive(Clone, Debug, Default)]
pub struct KindStatus {
    /// The current activity.
    pub state: FollowState,
    /// When the last complete list was sent; `None` before the first.
    pub synced: Option<Instant>,
    /// When the server last sent a list, a change or a bookmark. Unless requests fail, this is at most
    /// [`Timeouts::silence`](super::Timeouts::silence) ago.
    pub heard: Option<Instant>,
    /// The time of the last failure, and its reason.
    pub failed: Option<(Instant, String)>,
    /// The server's answer if it rejected the last request (HTTP status 4xx, for example without
    /// permission) and has sent nothing since.
    pub rejection: Option<String>,
    /// The number of complete lists that were sent.
    pub lists: u64,
    /// The number of changes of single objects that were sent.
    pub changes: u64,
    /// The number of failed list and watch requests.
    pub failures: u64,
}

impl KindStatus {
    /// Returns whether the kind was listed completely at least once.
    pub fn is_synced(&self) -> bool {
        self.synced.is_some()
    }
}

/// The activity of a follower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowState {
    /// The kind is not followed.
    #[default]
    Off,
    /// Objects are being listed.
    Listing,
    /// Changes are being watched.
    Watching,
    /// A request failed; the next attempt follows after a backoff.
    Waiting,
    /// The server lacks the optional kind or denies access to it. Retried every 5 to 10 minutes.
    Absent,
}

/// Reads the status of a watch, from any thread and also after the watch has ended.
#[derive(Clone, Debug)]
pub struct StatusReader(pub(super) Arc<StatusBoard>);

impl StatusReader {
    /// Returns the status of each follower.
    pub fn status(&self) -> Status {
        self.0.status()
    }
}

/// The status that followers write and [`Watch::status`](super::Watch::status) reads.
#[derive(Debug, Default)]
pub(super) struct StatusBoard {
    pub(super) services: Entry,
    pub(super) endpoint_slices: Entry,
    pub(super) node: Entry,
    pub(super) service_cidrs: Entry,
    pub(super) nodes: Entry,
}

impl StatusBoard {
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

/// The status of one kind.
#[derive(Debug, Default)]
pub(super) struct Entry(Mutex<KindStatus>);

impl Entry {
    fn read(&self) -> KindStatus {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, KindStatus> {
        // Each write leaves valid data, so the status is readable even after the panic of a writer.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_synced(&self) -> bool {
        self.lock().is_synced()
    }

    pub(super) fn set_state(&self, state: FollowState) {
        self.lock().state = state;
    }

    pub(super) fn record_contact(&self) {
        let mut followed = self.lock();
        followed.heard = Some(Instant::now());
        followed.rejection = None;
    }

    pub(super) fn record_change(&self) {
        self.lock().changes += 1;
    }

    pub(super) fn record_list(&self) {
        let mut followed = self.lock();
        followed.synced = Some(Instant::now());
        followed.lists += 1;
    }

    /// Records a failure.
    pub(super) fn record_failure(&self, why: String, is_rejection: bool) {
        let mut followed = self.lock();
        followed.rejection = is_rejection.then(|| why.clone());
        followed.state = FollowState::Waiting;
        followed.failures += 1;
        followed.failed = Some((Instant::now(), why));
    }

    /// Resets the status.
    pub(super) fn clear(&self) {
        *self.lock() = KindStatus::default();
    }
}
