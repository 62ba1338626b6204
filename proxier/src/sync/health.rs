//! The results of rounds that health checks and metrics read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink::ServiceKey;

use super::Proxier;
use crate::dataplane::Dataplane;
use crate::model::Family;
use crate::plan::Changed;

impl<D: Dataplane> Proxier<D> {
    /// Returns the parts of the plan that changed since the last call, and the virtual servers that may differ because
    /// of that, also in rounds that failed.
    pub fn take_changes(&mut self) -> (Changed, BTreeSet<ServiceKey>) {
        std::mem::take(&mut self.untaken)
    }

    /// Returns the addresses at which health-check ports listen, of both families.
    ///
    /// The unspecified address of a family stands for all of its addresses.
    pub fn health_check_addresses(&self) -> Vec<IpAddr> {
        let node = self.input.snapshot.node();
        let node = node.map_or(&[][..], |node| &node.addresses);
        let chosen = &self.planner.config().node_port_addresses;
        let listening = |family| chosen.listening(family, &self.machine.addresses, node);
        [Family::V4, Family::V6]
            .into_iter()
            .flat_map(listening)
            .collect()
    }

    /// Returns the refusals of the kernel, if they concern the whole node: the packet rules, or
    /// more than half of the planned virtual servers and addresses.
    ///
    /// A few refused objects are the fault of their Services and do not make the node unhealthy:
    /// every node refuses them, so one bad Service would take all nodes out of their load
    /// balancers.
    pub fn refusal(&self) -> Option<String> {
        let rules = self.rules.as_ref();
        // The retry timer runs exactly while the last write of rules failed.
        if rules.is_some_and(|rules| rules.retry.due().is_some()) {
            return Some("the kernel refuses the packet rules".to_owned());
        }
        let desired = self.planner.desired();
        let planned = self.wanted().len() + desired.addresses.len();
        let refused = self.retries.len();
        (refused * 2 > planned).then(|| {
            format!("the kernel refuses {refused} of {planned} virtual servers and addresses")
        })
    }
}
