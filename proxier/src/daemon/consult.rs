//! What the proxier and the watch of the API server learn from each other.

use super::Daemon;
use crate::dataplane::Dataplane;

impl<D: Dataplane> Daemon<D> {
    /// Tells the watch what to follow, and the proxier where the connections to the API server led.
    pub(super) fn consult_watch(&mut self) {
        let Some(watch) = &self.watch else {
            return;
        };
        // Other nodes are watched only while a Service has topology keys: in a cluster of 5,000 nodes
        // each kubelet updates its Node every few minutes.
        watch.set_other_nodes(self.proxier.snapshot().needs_other_nodes());
        self.proxier.set_api_servers(watch.reached_servers());
    }
}
