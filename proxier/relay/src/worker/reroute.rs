//! Connections whose frontend has a new route.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Relayed, Worker};
use crate::budget::Permit;
use crate::frontend::SharedFrontend;

/// Frontends with new routes. One search for their connections serves all of them.
#[derive(Debug, Default)]
pub(crate) struct Rerouted(BTreeMap<*const SharedFrontend, Arc<SharedFrontend>>);

impl Rerouted {
    pub(super) fn add(&mut self, frontend: Arc<SharedFrontend>) {
        self.0.insert(Arc::as_ptr(&frontend), frontend);
    }

    /// Returns whether a connection or flow is one of these frontends.
    pub(crate) fn have(&self, permit: &Permit) -> bool {
        self.0.contains_key(&std::ptr::from_ref(permit.frontend()))
    }
}

impl Worker {
    /// Ends what the routes of these frontends do not permit.
    pub(super) fn reroute(&mut self, rerouted: &Rerouted) {
        if rerouted.0.is_empty() {
            return;
        }
        let mut excluded = Vec::new();
        for (key, connection) in &mut self.connections {
            let (permit, lease) = match connection {
                Relayed::Relaying(relaying) => (&relaying.permit, &mut relaying.lease),
                Relayed::Connecting(waiting) => (&waiting.attempt.permit, &mut waiting.lease),
                Relayed::Ended => continue,
            };
            if !rerouted.have(permit) {
                continue;
            }
            match permit.pool() {
                // If that pool lacks the endpoint, the connection stays until its own pool lacks it too.
                Some(pool) => _ = lease.move_to(&pool),
                None => excluded.push(key),
            }
        }
        for key in excluded {
            self.reset(key);
        }
        self.free_ended();
        self.flows.reroute(rerouted);
    }
}
