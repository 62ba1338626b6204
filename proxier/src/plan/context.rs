//! What a Service's plan depends on beside the Service and its endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs_netlink as ipvs;

use super::endpoints::Place;
use super::{Machine, PlanConfig, ServiceAddresses};
use crate::model::Family;
use crate::problem::Problem;
use crate::store::Snapshot;

/// The scheduler that is built whenever IPVS is, as far as distributions go.
const FALLBACK: &str = "rr";

/// The node, as one planning of any number of Services sees it.
pub(super) struct Context<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) config: &'a PlanConfig,
    pub(super) machine: &'a Machine,
    /// The scheduler of virtual servers that do not choose one.
    pub(super) scheduler: ipvs::SchedulerName,
    /// The addresses that serve node ports, by family.
    node_ports: [Vec<IpAddr>; 2],
    /// Where connections from this machine to service addresses come from, by family.
    sources: [Option<IpAddr>; 2],
}

impl<'a> Context<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        machine: &'a Machine,
        config: &'a PlanConfig,
    ) -> Self {
        let before = || machine.node_port_addresses.iter().copied().collect();
        let named = snapshot.node().map(|node| node.addresses.clone());
        let named = named.unwrap_or_else(before);
        let serving = |family| {
            let chosen = &config.node_port_addresses;
            chosen.serving(family, &machine.addresses, &named)
        };
        Self {
            snapshot,
            config,
            machine,
            scheduler: default_scheduler(config, machine),
            node_ports: [serving(Family::V4), serving(Family::V6)],
            sources: [Family::V4, Family::V6]
                .map(|family| source(snapshot, &machine.addresses, family)),
        }
    }

    pub(super) fn place(&self) -> Place<'a> {
        Place::new(&self.config.node_name, self.snapshot)
    }

    /// The scheduler called `name`, unless the kernel turned out not to have it.
    pub(super) fn usable_scheduler(&self, name: &str) -> Option<ipvs::SchedulerName> {
        let name = name.parse().ok()?;
        (!self.machine.missing_schedulers.contains(&name)).then_some(name)
    }

    /// The addresses of this machine that serve node ports (`--nodeport-addresses`).
    pub(super) fn node_port_addresses(&self, family: Family) -> &[IpAddr] {
        let [v4, v6] = &self.node_ports;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// The preferred source of connections to `address`, in the form of addresses that has one.
    pub(super) fn source(&self, address: IpAddr) -> Option<IpAddr> {
        match self.config.service_addresses {
            ServiceAddresses::Dummy => None,
            ServiceAddresses::Routes => self.source_of(address.into()),
        }
    }

    fn source_of(&self, family: Family) -> Option<IpAddr> {
        let [v4, v6] = self.sources;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// What of the operator's choices and of the Node object cannot be had.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = self.strange_node_addresses();
        let wanted = self.config.scheduler;
        if self.scheduler != wanted {
            let message = format!(
                "is a scheduler that this kernel has not; {} is used",
                self.scheduler
            );
            problems.push(Problem::new("Configuration", "scheduler", wanted, message));
        }
        problems
    }

    /// Says so where the Node object's addresses are none of the machine's.
    fn strange_node_addresses(&self) -> Vec<Problem> {
        let Some(node) = self.snapshot.node() else {
            return Vec::new();
        };
        let mut problems = Vec::new();
        for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let Some(address) = node.address(family) else {
                continue;
            };
            if self.machine.addresses.contains(&address) {
                continue;
            }
            let instead = match self.source_of(family) {
                Some(source) => format!("come from {source} instead"),
                None => "carry the service address as their source".to_owned(),
            };
            problems.push(Problem::new(
                format_args!("Node {}", node.name),
                "status.addresses",
                address,
                format!(
                    "no address of this machine; its connections to {name} service addresses \
                     {instead}"
                ),
            ));
        }
        problems
    }
}

/// What the operator chose, or else the scheduler that every kernel with IPVS is built with.
fn default_scheduler(config: &PlanConfig, machine: &Machine) -> ipvs::SchedulerName {
    let chosen = config.scheduler;
    if !machine.missing_schedulers.contains(&chosen) {
        return chosen;
    }
    ipvs::SchedulerName::new(FALLBACK).unwrap_or(chosen)
}

/// The node's address, or else the lowest that the machine has. Never one it has not, which the
/// kernel refuses.
fn source(
    snapshot: &Snapshot,
    machine_addresses: &BTreeSet<IpAddr>,
    family: Family,
) -> Option<IpAddr> {
    let named = snapshot
        .node()
        .and_then(|node| node.address(family))
        .filter(|address| machine_addresses.contains(address));
    named.or_else(|| {
        let mut addresses = machine_addresses.iter().copied();
        addresses.find(|&address| Family::from(address) == family)
    })
}
