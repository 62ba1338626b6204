//! What acts beside rounds, and what it reads of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::problem::Problem;
use crate::dataplane::{Applied, Dataplane, Extent};
use crate::reconcile::Proxier;
use crate::sources::message::Message;
use crate::sources::watch::Watch;

/// Something that acts beside rounds: it maintains, publishes, measures or reports. The daemon calls all chores, in the
/// order of its list.
pub trait Chore<D: Dataplane> {
    /// Returns when it needs a round before the next resync, in time since boot.
    fn due(&self) -> Option<Duration> {
        None
    }

    /// Learns of a message that the daemon received.
    fn receive(&mut self, message: &Message) {
        let _ = message;
    }

    /// Acts before a round that begins at `now`, in time since boot.
    fn before(&mut self, extent: Extent, now: Duration) {
        let _ = (extent, now);
    }

    /// Acts after a round, also after one that failed as a whole.
    fn after(&mut self, round: &Round<'_, D>);

    /// Answers the questions of clients that look at the node.
    fn look(&mut self, proxier: &Proxier<D>) {
        let _ = proxier;
    }

    /// Acts after the last round.
    fn stop(&mut self, proxier: &Proxier<D>) {
        let _ = proxier;
    }

    /// Acts when the process ends because of a failure.
    fn end(&mut self, watch: &Watch) {
        let _ = watch;
    }
}

/// A round that was made.
#[derive(Debug)]
pub struct Round<'a, D: Dataplane> {
    /// When it began, in time since boot.
    pub(super) now: Duration,
    pub(super) extent: Extent,
    pub(super) took: Duration,
    /// What it did, or why it failed as a whole. Then the kernel still has the state of earlier rounds.
    pub(super) result: Result<&'a Applied<D::Changes>, &'a str>,
    /// All present Problems.
    pub(super) problems: Arc<[Problem]>,
    /// The ports whose health check may differ since the last round that did not fail as a whole.
    pub(super) health_ports: BTreeSet<u16>,
    pub(super) proxier: &'a Proxier<D>,
    /// The connection to the API server; `None` with manifests.
    pub(super) watch: Option<&'a Watch>,
}

impl<D: Dataplane> Round<'_, D> {
    /// Returns whether all of it took effect.
    pub(super) fn has_succeeded(&self) -> bool {
        let is_whole = |applied: &Applied<_>| applied.failures().next().is_none();
        self.result.is_ok_and(is_whole)
    }

    /// Returns whether something is to be done that is due at each resync, and at `due`.
    pub(super) fn is_due(&self, due: Option<Duration>) -> bool {
        self.extent == Extent::All || due.is_some_and(|due| due <= self.now)
    }
}
