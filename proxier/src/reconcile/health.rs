//! The results of rounds that health checks and metrics read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Proxier, families};
use crate::cluster::model::Family;
use crate::dataplane::Dataplane;

impl<D: Dataplane> Proxier<D> {
    /// Returns the ports whose health check may differ since the last call, also in rounds that failed.
    pub fn take_health_ports(&mut self) -> BTreeSet<u16> {
        std::mem::take(&mut self.health_ports)
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

    /// Returns why the whole node is unhealthy: what the kernel refuses, or the family that this node cannot speak.
    pub fn refusal(&self) -> Option<String> {
        let of_dataplane = self.dataplane.refusal(self.cluster.planned());
        of_dataplane.or_else(|| families::refusal(self.machine(), self.desired()))
    }
}
