//! The values that the daemon publishes for the HTTP servers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Chore, Round};
use crate::cluster::model::Node;
use crate::cluster::store::Event;
use crate::dataplane::{Dataplane, Extent};
use crate::observe::health::{Board, NodeState};
use crate::observe::serve::HealthCheckPorts;
use crate::sources::message::Message;
use crate::util::clock;

/// Publishes health and health checks. Each publication costs a lock and a copy of the changes.
#[derive(Debug, Default)]
pub struct Publisher {
    board: Arc<Board>,
    health_ports: Arc<HealthCheckPorts>,
}

impl Publisher {
    /// Returns a publisher for these readers, and publishes that the process started.
    pub fn new(board: Arc<Board>, health_ports: Arc<HealthCheckPorts>) -> Self {
        let now = SystemTime::now();
        board.change(|facts| facts.updated = Some(now));
        Self {
            board,
            health_ports,
        }
    }

    fn publish_node(&self, node: &Node) {
        let state = if node.is_leaving {
            NodeState::Leaving
        } else {
            NodeState::Staying
        };
        self.board.change(|facts| facts.node = state);
    }
}

impl<D: Dataplane> Chore<D> for Publisher {
    fn receive(&mut self, message: &Message) {
        let now = clock::since_boot();
        self.board.change(|facts| facts.queue(now));
        match message {
            Message::Event(Event::Node(node)) => self.publish_node(node),
            Message::Manifests(loaded) => {
                // Manifests need not have a Node object. Without one, the node counts as staying for ever.
                self.board.change(|facts| {
                    if facts.node == NodeState::Unknown {
                        facts.node = NodeState::Staying;
                    }
                });
                for event in &loaded.events {
                    if let Event::Node(node) = event {
                        self.publish_node(node);
                    }
                }
            }
            _ => {}
        }
    }

    fn before(&mut self, _extent: Extent, now: Duration) {
        self.board.change(|facts| facts.begin(now));
    }

    fn after(&mut self, round: &Round<'_, D>) {
        let (now, wall) = (clock::since_boot(), SystemTime::now());
        if let Err(why) = round.result {
            return (self.board).change(|facts| facts.fail(why.to_owned(), now));
        }
        let refusal = round.proxier.refusal();
        (self.board).change(|facts| facts.end(refusal, now, wall));
        // Only the changes, so that a round for one event does not copy 10,000 entries.
        let desired = round.proxier.desired();
        let check = |port: &u16| (*port, desired.health_checks.get(port).cloned());
        self.health_ports
            .update(round.health_ports.iter().map(check));
        self.health_ports
            .listen_at(round.proxier.health_check_addresses());
    }
}
