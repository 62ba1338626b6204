//! When the first round may be made.
//!
//! An object that is missing from incomplete input may exist, and a round would delete its virtual
//! servers. So the first round waits:
//!
//! * for one complete list of Services and of EndpointSlices;
//! * for our Node, and for other nodes if a Service needs their locations, but only for a while: a
//!   Node may never appear;
//! * for manifests that can be read whole, if the kernel has state of ours. Otherwise nothing is
//!   lost by programming the readable part.

use std::time::Duration;

use crate::clock;
use crate::dataplane::{Dataplane, Failure};
use crate::store::Snapshot;
use crate::sync::Proxier;

/// How long the first round waits for Node objects.
pub(super) const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// The state of the wait.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Until when the first round waits for Node objects, in time since boot.
    node_deadline: Option<Duration>,
    /// Whether manifests were received.
    has_manifests: bool,
    /// Whether the last manifests, which could not be read whole, were found to be too little.
    is_rejected: bool,
}

impl Gate {
    /// Follows an event of the API server, which led to `snapshot`.
    pub(super) fn event(&mut self, snapshot: &Snapshot) {
        if snapshot.is_complete() && self.node_deadline.is_none() {
            self.node_deadline = Some(clock::since_boot() + NODE_PATIENCE);
        }
    }

    /// Follows manifests. A Node that they lack does not exist, so there is no wait for it.
    pub(super) fn manifests(&mut self) {
        self.has_manifests = true;
        self.is_rejected = false;
        self.node_deadline = Some(Duration::ZERO);
    }

    /// Returns when the first round is due, in time since boot; `None` while it waits.
    pub(super) fn opens(&self, snapshot: &Snapshot) -> Option<Duration> {
        if !snapshot.is_complete() {
            let may_try = self.has_manifests && !self.is_rejected;
            return may_try.then_some(Duration::ZERO);
        }
        let knows_others = !snapshot.needs_other_nodes() || snapshot.knows_other_nodes();
        if snapshot.node().is_some() && knows_others {
            return Some(Duration::ZERO);
        }
        self.node_deadline
    }

    /// Returns whether a round may be made now.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub(super) fn pass<D: Dataplane>(&mut self, proxier: &mut Proxier<D>) -> Result<bool, Failure> {
        if proxier.may_start()? {
            return Ok(true);
        }
        if !std::mem::replace(&mut self.is_rejected, true) {
            tracing::error!(
                "some manifests cannot be read, and the kernel has state of an earlier process; \
                 nothing is programmed until all manifests can be read"
            );
            for problem in proxier.problems() {
                tracing::warn!("{problem}");
            }
        }
        Ok(false)
    }
}
