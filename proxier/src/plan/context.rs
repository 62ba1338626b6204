//! The input of a Service's plan other than the Service and its endpoints.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::elsewhere::Elsewhere;
use super::endpoints::{Topology, Weighing};
use super::options::{IGNORED, ignores_weights, no_object_matches};
use super::standing::{UNHEEDED, can_start_slowly};
use super::{Capabilities, Machine, PlanConfig, ServiceAddresses, SourceFlaw};
use crate::cluster::model::{Family, Service, Weights};
use crate::cluster::problem::Problem;
use crate::cluster::store::Snapshot;

/// The scheduler that replaces a default scheduler that the kernel lacks. No known distribution builds IPVS
/// without `ip_vs_rr`.
const FALLBACK: &str = "rr";

/// The state of the node during one update of the plan.
pub(super) struct Context<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) config: &'a PlanConfig,
    pub(super) machine: &'a Machine,
    pub(super) capabilities: &'a Capabilities,
    /// The scheduler of Services without the annotation `scheduler`.
    pub(super) scheduler: Arc<str>,
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
        capabilities: &'a Capabilities,
        config: &'a PlanConfig,
    ) -> Self {
        // While the Node is unknown: the addresses at which an earlier process served node ports.
        let before = || capabilities.node_port_addresses.iter().copied().collect();
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
            capabilities,
            scheduler: default_scheduler(config, capabilities),
            node_ports: [serving(Family::V4), serving(Family::V6)],
            sources: [Family::V4, Family::V6].map(|family| source(snapshot, machine, family)),
            elsewhere: Elsewhere::new(snapshot, machine),
        }
    }

    pub(super) fn topology(&self) -> Topology<'a> {
        Topology::new(&self.config.node_name, self.snapshot)
    }

    /// Returns how the endpoints of `service` are weighed.
    pub(super) fn weighing<'s>(&self, service: &'s Service) -> Weighing<'s>
    where
        'a: 's,
    {
        Weighing::of(service, self.config, &self.machine.standings)
    }

    /// Returns the weights of endpoints of Services without the annotation `weights`.
    pub(super) fn weights(&self) -> Option<&'a Weights> {
        self.config.weights.as_deref()
    }

    /// Returns whether this node has `address`, on an interface or according to its Node object.
    pub(super) fn is_own(&self, address: &IpAddr) -> bool {
        let node = self.snapshot.node();
        self.machine.has(address) || node.is_some_and(|node| node.addresses.contains(address))
    }

    /// Returns the scheduler `name`; `None` if the dataplane lacks it.
    pub(super) fn usable_scheduler(&self, name: &str) -> Option<Arc<str>> {
        let is_missing = self.capabilities.missing_schedulers.contains(name);
        (!is_missing).then(|| name.into())
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
    /// `None` if there is no local route, because only routes have a preferred source.
    pub(super) fn source(&self, address: IpAddr) -> Option<IpAddr> {
        match self.config.service_addresses {
            ServiceAddresses::Dummy | ServiceAddresses::None => None,
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
        let mut problems = Vec::new();
        // Without local addresses, the route to a service address decides about the source.
        if self.config.service_addresses != ServiceAddresses::None {
            problems.extend(self.foreign_node_addresses());
        }
        if self.config.service_addresses.use_routes() {
            problems.extend(self.missing_sources());
        }
        let wanted = &self.config.scheduler;
        if self.scheduler != *wanted {
            let message = format!(
                "is a scheduler that this node's dataplane lacks; {} is used instead",
                self.scheduler
            );
            problems.push(Problem::new("Configuration", "scheduler", wanted, message));
        }
        let is_ignored = |weights| ignores_weights(&self.scheduler, weights);
        if self.weights().is_some_and(is_ignored) {
            let message = format!(
                "{IGNORED}; choose one that uses them with --ipvs-scheduler, such as wrr or wlc"
            );
            problems.push(Problem::new(
                "Configuration",
                "--weights",
                &self.scheduler,
                message,
            ));
        }
        if self.config.slow_start.is_some() && !can_start_slowly(wanted) {
            let message = format!(
                "{UNHEEDED}; choose one that can with --ipvs-scheduler, such as twos, wlc or mh"
            );
            problems.push(Problem::new(
                "Configuration",
                "--slow-start",
                wanted,
                message,
            ));
        }
        let keys = self.weights().into_iter().flat_map(|weights| &weights.near);
        for (key, _) in keys {
            problems.extend(self.topology().missing_objects(*key).map(|missing| {
                Problem::new(
                    "Configuration",
                    "--weights",
                    key,
                    no_object_matches(missing),
                )
            }));
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
            let flaw = self.machine.flawed_sources.get(&address);
            let is_usable = flaw != Some(&SourceFlaw::Unusable);
            let is_own = self.machine.addresses.contains(&address);
            if is_own && is_usable || address.is_loopback() {
                continue;
            }
            let what = match is_own {
                false => "is not an address of this machine",
                true => {
                    "is tentative or a duplicate (`ip -6 address` says dadfailed), so it is no source"
                }
            };
            let instead = match self.source_of(family) {
                Some(source) => format!("{source}"),
                None if family == Family::V4 => "the service address".to_owned(),
                None => "an address that the kernel chooses".to_owned(),
            };
            problems.push(Problem::new(
                format_args!("Node {}", node.name),
                "status.addresses",
                address,
                format!(
                    "{what}; its connections to {name} service addresses come from {instead} instead"
                ),
            ));
        }
        problems
    }

    /// Returns a problem if routing rules select each usable IPv6 address of the machine.
    ///
    /// In IPv4, the service address is a good source too.
    fn missing_sources(&self) -> Option<Problem> {
        let flaws = &self.machine.flawed_sources;
        let mut all = self.machine.addresses.iter().filter(|it| it.is_ipv6());
        if self.source_of(Family::V6).is_some() {
            return None;
        }
        let first = all.find(|it| flaws.get(it) != Some(&SourceFlaw::Unusable))?;
        let message = "is selected by a routing rule, as each usable IPv6 address of this node: its connections to IPv6 \
                       Services find no endpoint unless the rule's table has routes to it; the usual remedy is `ip -6 \
                       rule add to POD-NETWORK lookup main` with a lower preference";
        Some(Problem::new("This node", "IPv6 addresses", first, message))
    }
}

/// Returns the operator's scheduler, or [`FALLBACK`] if the dataplane lacks it.
fn default_scheduler(config: &PlanConfig, capabilities: &Capabilities) -> Arc<str> {
    let chosen = &config.scheduler;
    if capabilities.missing_schedulers.contains(chosen) {
        FALLBACK.into()
    } else {
        chosen.clone()
    }
}

/// Returns the preferred source of connections to service addresses of a family: the Node object's address if the
/// machine has it, otherwise the machine's lowest address. `None` if no address suits.
///
/// The Node object alone does not decide, because the kernel rejects a route whose preferred source is not
/// local (`fib_valid_prefsrc`).
///
/// Without a source, the kernel uses the service address itself in IPv4. That needs no other address of the machine:
/// the connections are masqueraded. In IPv6 it uses any address of the machine, so one without flaw is better.
fn source(snapshot: &Snapshot, machine: &Machine, family: Family) -> Option<IpAddr> {
    let named = snapshot.node().and_then(|node| node.address(family));
    let flaw = |address: &IpAddr| machine.flawed_sources.get(address).copied();
    let is_ruled = |address: &IpAddr| flaw(address) == Some(SourceFlaw::SelectedByRule);
    let addresses = machine.addresses.iter().copied();
    let usable = addresses
        .filter(|&address| Family::from(address) == family)
        .filter(|address| flaw(address) != Some(SourceFlaw::Unusable));
    // The addresses are ordered, so each process chooses the same one.
    let chosen = usable.min_by_key(|address| {
        let is_evaded = family == Family::V6 && is_ruled(address);
        (is_evaded, Some(*address) != named, flaw(address))
    });
    chosen.filter(|address| !is_ruled(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [&str; 2] = ["172.18.0.2", "10.0.0.1"];
    const V6: [&str; 3] = ["2001:db8::1", "2001:db8::2", "2001:db8::3"];

    fn machine(flaws: &[(&str, SourceFlaw)]) -> Machine {
        let parse = |text: &&str| text.parse::<IpAddr>().unwrap();
        let mut machine = Machine {
            addresses: V4.iter().chain(&V6).map(parse).collect(),
            ..Machine::default()
        };
        for (address, flaw) in flaws {
            machine.flaw(parse(address), *flaw);
        }
        machine
    }

    #[test]
    fn the_source_of_connections_has_no_flaw() {
        use SourceFlaw::{Deprecated, SelectedByRule, Unusable};
        let [named4, other4] = V4;
        let [low, named6, high] = V6;
        let node = crate::cluster::model::Node {
            addresses: [named4, named6].map(|it| it.parse().unwrap()).into(),
            name: "node-a".into(),
            zone: None,
            region: None,
            pod_cidrs: Vec::new(),
            is_leaving: false,
        };
        let mut named = Snapshot::default();
        named.apply(
            crate::cluster::store::Event::Node(node),
            &mut crate::cluster::store::Touched::none(),
        );
        let unnamed = Snapshot::default();
        let all = |flaw| {
            V4.iter()
                .chain(&V6)
                .map(|it| (*it, flaw))
                .collect::<Vec<_>>()
        };
        for (scenario, snapshot, flaws, v4, v6) in [
            ("none", &named, vec![], Some(named4), Some(named6)),
            ("no Node", &unnamed, vec![], Some(other4), Some(low)),
            (
                "tentative",
                &named,
                vec![(named6, Unusable)],
                Some(named4),
                Some(low),
            ),
            (
                "lowest failed",
                &unnamed,
                vec![(low, Unusable)],
                Some(other4),
                Some(named6),
            ),
            (
                "lowest failed",
                &named,
                vec![(low, Unusable)],
                Some(named4),
                Some(named6),
            ),
            ("all failed", &named, all(Unusable), None, None),
            (
                "deprecated",
                &unnamed,
                vec![(low, Deprecated)],
                Some(other4),
                Some(named6),
            ),
            (
                "all deprecated",
                &unnamed,
                all(Deprecated),
                Some(other4),
                Some(low),
            ),
            (
                "named deprecated",
                &named,
                vec![(named6, Deprecated)],
                Some(named4),
                Some(named6),
            ),
            (
                "rules",
                &named,
                vec![(named4, SelectedByRule), (named6, SelectedByRule)],
                None,
                Some(low),
            ),
            (
                "rule for another",
                &named,
                vec![(other4, SelectedByRule)],
                Some(named4),
                Some(named6),
            ),
            (
                "worst flaw",
                &named,
                vec![(low, Unusable), (low, Deprecated), (named6, Unusable)],
                Some(named4),
                Some(high),
            ),
            ("rules for all", &named, all(SelectedByRule), None, None),
        ] {
            let machine = machine(&flaws);
            let chosen = [Family::V4, Family::V6].map(|family| source(snapshot, &machine, family));
            let expected = [v4, v6].map(|it| it.map(|it| it.parse().unwrap()));
            assert_eq!(chosen, expected, "{scenario}");
        }
    }
}
