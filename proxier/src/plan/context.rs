//! The input of a Service's plan other than the Service and its endpoints.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipvs_netlink as ipvs;

use super::elsewhere::Elsewhere;
use super::endpoints::Topology;
use super::{Machine, PlanConfig, ServiceAddresses};
use crate::model::Family;
use crate::problem::Problem;
use crate::store::Snapshot;

/// The scheduler that replaces a default scheduler that the kernel lacks. No known distribution builds IPVS
/// without `ip_vs_rr`.
const FALLBACK: &str = "rr";

/// The state of the node during one update of the plan.
pub(super) struct Context<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) config: &'a PlanConfig,
    pub(super) machine: &'a Machine,
    /// The scheduler of Services without the annotation `scheduler`.
    pub(super) scheduler: ipvs::SchedulerName,
    /// The addresses that serve node ports, by family.
    node_ports: [Vec<IpAddr>; 2],
    /// The preferred source of connections from this machine to service addresses, by family.
    sources: [Option<IpAddr>; 2],
    /// The addresses of other machines.
    pub(super) elsewhere: Elsewhere,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        machine: &'a Machine,
        config: &'a PlanConfig,
    ) -> Self {
        // While the Node is unknown: the addresses at which an earlier process served node ports.
        let before = || machine.node_port_addresses.iter().copied().collect();
        let named = snapshot.node().map(|node| node.addresses.clone());
        let named = named.unwrap_or_else(before);
        let serving = |family| {
            let chosen = &config.node_port_addresses;
            let mut serving = chosen.serving(family, &machine.addresses, &named);
            let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
            // Not ::1, which kube-proxy serves in no mode.
            if family == Family::V4
                && config.has_localhost_node_ports
                && chosen.includes_loopback(localhost)
            {
                serving.push(localhost);
            }
            serving
        };
        Self {
            snapshot,
            config,
            machine,
            scheduler: default_scheduler(config, machine),
            node_ports: [serving(Family::V4), serving(Family::V6)],
            sources: [Family::V4, Family::V6]
                .map(|family| source(snapshot, &machine.addresses, family)),
            elsewhere: Elsewhere::new(snapshot, machine),
        }
    }

    pub(super) fn topology(&self) -> Topology<'a> {
        Topology::new(&self.config.node_name, self.snapshot)
    }

    /// Returns whether this node has `address`, on an interface or according to its Node object.
    pub(super) fn is_own(&self, address: &IpAddr) -> bool {
        let node = self.snapshot.node();
        self.machine.has(address) || node.is_some_and(|node| node.addresses.contains(address))
    }

    /// Returns the scheduler `name`; `None` if the kernel rejected it before.
    pub(super) fn usable_scheduler(&self, name: &str) -> Option<ipvs::SchedulerName> {
        let name = name.parse().ok()?;
        (!self.machine.missing_schedulers.contains(&name)).then_some(name)
    }

    /// Returns the addresses that serve node ports (`--nodeport-addresses`).
    pub(super) fn node_port_addresses(&self, family: Family) -> &[IpAddr] {
        let [v4, v6] = &self.node_ports;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Returns the preferred source of connections to `address`.
    ///
    /// `None` for addresses on the dummy device, because only routes have a preferred source.
    pub(super) fn source(&self, address: IpAddr) -> Option<IpAddr> {
        match self.config.service_addresses {
            ServiceAddresses::Dummy => None,
            ServiceAddresses::Routes | ServiceAddresses::Loopback => self.source_of(address.into()),
        }
    }

    fn source_of(&self, family: Family) -> Option<IpAddr> {
        let [v4, v6] = self.sources;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Returns the problems of the configuration and of the Node object.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = self.foreign_node_addresses();
        let wanted = self.config.scheduler;
        if self.scheduler != wanted {
            let message = format!(
                "is a scheduler that this kernel lacks; {} is used instead",
                self.scheduler
            );
            problems.push(Problem::new("Configuration", "scheduler", wanted, message));
        }
        problems
    }

    /// Returns a problem for each address of the Node object that the machine lacks.
    fn foreign_node_addresses(&self) -> Vec<Problem> {
        let Some(node) = self.snapshot.node() else {
            return Vec::new();
        };
        let mut problems = Vec::new();
        for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let Some(address) = node.address(family) else {
                continue;
            };
            // The machine's addresses do not include loopback addresses, which every machine has.
            if self.machine.addresses.contains(&address) || address.is_loopback() {
                continue;
            }
            let instead = match self.source_of(family) {
                Some(source) => format!("{source}"),
                None => "the service address".to_owned(),
            };
            problems.push(Problem::new(
                format_args!("Node {}", node.name),
                "status.addresses",
                address,
                format!(
                    "is not an address of this machine; its connections to {name} service addresses \
                     come from {instead} instead"
                ),
            ));
        }
        problems
    }
}

/// Returns the operator's scheduler, or [`FALLBACK`] if the kernel lacks it.
fn default_scheduler(config: &PlanConfig, machine: &Machine) -> ipvs::SchedulerName {
    let chosen = config.scheduler;
    if !machine.missing_schedulers.contains(&chosen) {
        return chosen;
    }
    ipvs::SchedulerName::new(FALLBACK).unwrap_or(chosen)
}

/// Returns the Node object's address if the machine has it, otherwise the machine's lowest address.
///
/// The Node object alone does not decide, because the kernel rejects a route whose preferred source is not
/// local (`fib_valid_prefsrc`).
fn source(
    snapshot: &Snapshot,
    machine_addresses: &BTreeSet<IpAddr>,
    family: Family,
) -> Option<IpAddr> {
    let named = snapshot
        .node()
        .and_then(|node| node.address(family))
        .filter(|address| machine_addresses.contains(address));
    // The addresses are ordered, so each process chooses the same one.
    named.or_else(|| {
        let mut addresses = machine_addresses.iter().copied();
        addresses.find(|&address| Family::from(address) == family)
    })
}
