//! The gate: decides when the first round may be made.
//!
//! A Service that incomplete input lacks may exist, and a round would delete its virtual servers. So the
//! first round waits:
//!
//! * for one complete list of Services and of EndpointSlices;
//! * for our Node, for the service ranges, and for other nodes if a Service needs their locations and they may be
//!   followed, but at most [`NODE_PATIENCE`], because a Node may never appear;
//! * for manifests that can be read whole, if the kernel has state of ours. If it has none, a round
//!   with only the readable part deletes nothing.

use std::time::Duration;

use crate::cluster::store::Snapshot;
use crate::dataplane::{Dataplane, Failure};
use crate::reconcile::Proxier;
use crate::sources::watch::NodeScope;
use crate::util::clock;

/// The longest time that the first round waits for Node objects.
pub(super) const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// The state of the wait for the first round.
#[derive(Debug)]
pub(super) struct Gate {
    nodes: NodeScope,
    /// When the wait for Node objects ends, in time since boot; `None` until the lists are complete.
    node_deadline: Option<Duration>,
    /// Whether manifests were received.
    has_manifests: bool,
    /// Whether [`Gate::pass`] refused a round with the last manifests.
    is_rejected: bool,
}

impl Gate {
    /// Returns a gate for input with these Nodes.
    pub(super) fn new(nodes: NodeScope) -> Self {
        Self {
            nodes,
            node_deadline: None,
            has_manifests: false,
            is_rejected: false,
        }
    }

    /// Updates the wait after an event of the API server; `snapshot` includes the event.
    ///
    /// Returns whether the wait for Node objects begins.
    pub(super) fn event(&mut self, snapshot: &Snapshot) -> bool {
        let begins = snapshot.is_complete() && self.node_deadline.is_none();
        // The wait does not begin at the start of the process: an API server that does not answer
        // sends no Node.
        if begins {
            self.node_deadline = Some(clock::since_boot() + NODE_PATIENCE);
        }
        begins
    }

    /// Updates the wait after manifests. They have all Nodes that exist, so the wait for Nodes ends.
    pub(super) fn manifests(&mut self) {
        self.has_manifests = true;
        self.is_rejected = false;
        self.node_deadline = Some(Duration::ZERO);
    }

    /// Returns when the first round is due, in time since boot; `None` while it waits.
    pub(super) fn opens(&self, snapshot: &Snapshot) -> Option<Duration> {
        if !snapshot.is_complete() {
            // Manifests may stay incomplete, so `pass` decides by the kernel's state. An incomplete
            // list of the API server only needs more time.
            let may_try = self.has_manifests && !self.is_rejected;
            return may_try.then_some(Duration::ZERO);
        }
        let awaits_others = self.nodes == NodeScope::All && snapshot.needs_other_nodes();
        let knows_others = !awaits_others || snapshot.knows_other_nodes();
        // Without the ranges, it would delete packet rules that the next round needs.
        let knows_ranges = snapshot.knows_service_ranges();
        if snapshot.node().is_some() && knows_others && knows_ranges {
            return Some(Duration::ZERO);
        }
        self.node_deadline
    }

    /// Returns whether a round may be made now.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub(super) fn pass<D: Dataplane>(&mut self, proxier: &mut Proxier<D>) -> Result<bool, Failure> {
        if proxier.may_start()? {
            return Ok(true);
        }
        // Without this, the same manifests would make a round due at once again.
        self.is_rejected = true;
        Ok(false)
    }
}
