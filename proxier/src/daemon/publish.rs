//! The values that the daemon publishes for the HTTP servers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::dataplane::Dataplane;
use crate::observe::health::{Board, NodeState};
use crate::observe::serve::HealthCheckPorts;
use crate::reconcile::Proxier;

/// Publishes health and health checks. Each publication costs a lock and a copy of the changes.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    pub(super) board: Arc<Board>,
    pub(super) health_ports: Arc<HealthCheckPorts>,
    /// Whether the objects come from manifests, which may lack our Node for ever.
    pub(super) has_manifests: bool,
}

impl Publisher {
    /// Publishes that the loop started.
    pub(super) fn start(&self) {
        let now = SystemTime::now();
        self.board.change(|facts| facts.updated = Some(now));
    }

    /// Publishes that a message waits for a round.
    pub(super) fn queue(&self, now: Duration) {
        self.board.change(|facts| facts.queue(now));
    }

    /// Publishes the state of our Node.
    pub(super) fn node<D: Dataplane>(&self, proxier: &Proxier<D>) {
        let state = match proxier.snapshot().node() {
            Some(node) if node.is_leaving => NodeState::Leaving,
            Some(_) => NodeState::Staying,
            // Manifests need not have a Node object. Without one, the node counts as staying for ever.
            None if self.has_manifests => NodeState::Staying,
            None => NodeState::Unknown,
        };
        self.board.change(|facts| facts.node = state);
    }

    /// Publishes that a round begins.
    pub(super) fn begin(&self, now: Duration) {
        self.board.change(|facts| facts.begin(now));
    }

    /// Publishes the state after a round: of the kernel, and of the health checks.
    pub(super) fn end<D: Dataplane>(&self, proxier: &mut Proxier<D>, now: Duration) {
        let refusal = proxier.refusal();
        let wall = SystemTime::now();
        self.board.change(|facts| facts.end(refusal, now, wall));
        // Only the changes, so that a round for one event does not copy 10,000 entries.
        let health_ports = proxier.take_health_ports();
        let desired = proxier.desired();
        let check = |port: &u16| (*port, desired.health_checks.get(port).cloned());
        self.health_ports.update(health_ports.iter().map(check));
        self.health_ports
            .listen_at(proxier.health_check_addresses());
    }

    /// Publishes that a round failed as a whole.
    pub(super) fn fail(&self, why: &str, now: Duration) {
        self.board.change(|facts| facts.fail(why.to_owned(), now));
    }
}
