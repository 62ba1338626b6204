//! The results of rounds that health checks and metrics read.

use std::net::IpAddr;

use super::Proxier;
use crate::cluster::model::Family;
use crate::dataplane::Dataplane;
use crate::plan::Changed;

impl<D: Dataplane> Proxier<D> {
    /// Returns the parts of the plan that changed since the last call, also in rounds that failed.
    pub fn take_changes(&mut self) -> Changed {
        std::mem::take(&mut self.untaken)
    }

    /// Returns the addresses at which health-check ports listen, of both families.
    ///
    /// The unspecified address of a family stands for all of its addresses.
    pub fn health_check_addresses(&self) -> Vec<IpAddr> {
        let node = self.snapshot().node();
        let node = node.map_or(&[][..], |node| &node.addresses);
        let chosen = &self.planner().config().node_port_addresses;
        let listening = |family| chosen.listening(family, &self.machine().addresses, node);
        [Family::V4, Family::V6]
            .into_iter()
            .flat_map(listening)
            .collect()
    }

    /// Returns why the kernel refuses so much that the whole node is unhealthy.
    pub fn refusal(&self) -> Option<String> {
        self.dataplane.refusal(self.cluster.planned())
    }
}
