//! The packet rules that Services need beside IPVS, computed from the plan without I/O.
//!
//! ```text
//!  Desired, Changed ─▶ Filter::follow ──▶ Ruleset ──▶ Filter::pending ──▶ Write: commands,
//!          Observed ─▶ Filter::release ─┘                                 or the whole table
//! ```
//!
//! The hooks that packets pass, with the priorities of our chains and of IPVS:
//!
//! ```text
//!              prerouting       input                                 IPVS          output        postrouting
//!  a client ──▶ -101: shield ──▶ 0: guard, mark, refuse ─▶ 97: inside ─▶ 98, 99 ──▶ -300: restore ─▶ 99: masquerade ──▶ endpoint
//!                                                                         └ no virtual server ─▶ 101: unserved
//!  a process of the node ──▶ output -110: guard, mark ─▶ -101: shield ─▶ -99: inside ─▶ IPVS -98 ──▶ the same again
//! ```
//!
//! * *shield*: binds each new connection to a frontend, except a node port, to its destination. After
//!   that, the kernel runs no NAT rule of another program for the connection: a hostPort does not take
//!   the connections to a Service with the same port.
//! * *guard*: rejects or drops new connections to a frontend that has source ranges, has no
//!   endpoints, or is stale.
//! * *mark*: sets the masquerade bit of packets whose answers must return through this node.
//! * *refuse*: rejects new connections to a service address that match no frontend. Service addresses
//!   are local, so without this rule a daemon that listens on all addresses would answer.
//! * *unserved*: rejects packets to a frontend whose virtual server does not exist, because the kernel
//!   refused it or another program deleted it.
//! * *inside*: sets the firewall mark by which IPVS finds the endpoints for clients inside the
//!   cluster. IPVS compares the whole mark, so the packet's earlier mark is saved.
//! * *restore*: gives the packet its earlier mark back.
//! * *masquerade*: changes the source of marked connections, and of connections of a Pod to itself,
//!   to an address of the node, before other programs' source NAT (100). A later chain clears the bit.
//!
//! The table is called [`TABLE`]. It has no chain at the forward hook. IPVS sends requests through the
//! output hook, and only the answers of endpoints are forwarded. If a chain of another program drops these
//! or the requests, only a rule in that chain can help, because a drop in any table is final. See
//! [`crate::host::ForeignChains`]; `filter/input_accept.rs` marks requests for such a rule.
//!
//! With `--arp=services`, a second table of the same name, of family `arp`, hides external addresses on the
//! node's links (`filter/arp.rs`).
//!
//! Rules tighten before the Ops of a round and loosen after them ([`Ruleset::release`]).

use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::dataplane::ipvs::{Admission, MarkChanges, Wanted};
use crate::frontend::Frontend;
use crate::model::{Cidr, Family, Node};
use crate::observed::{Observed, ObservedServer};
use crate::plan::{Changed, Machine};
use crate::problem::Problem;
use nftables::{Command, Table};

mod admission;
mod arp;
mod chains;
mod config;
mod guards;
mod input_accept;
mod inside;
mod names;
mod nat;
mod ruleset;
mod tracked;

pub(crate) use arp::LinkAddresses;
pub use config::{FilterConfig, LocalMode, MarkBit};
pub(crate) use ruleset::Fingerprint;
pub use ruleset::Ruleset;

use config::NodeFacts;

/// The name of the table of family `inet`, and of its companion of family `arp`.
pub const TABLE: &str = "ipvs-proxier";

/// The packet rules of this node, and whether the kernel has them.
#[derive(Debug)]
pub struct Filter {
    config: FilterConfig,
    node: NodeFacts,
    links: LinkAddresses,
    /// It records its changes if the kernel has the ruleset, except for these changes.
    ruleset: Ruleset,
}

/// The write that gives the kernel the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// These commands, in one transaction.
    Commands(Vec<Command>),
    /// The whole table, because the kernel's present rules are unknown.
    Table,
}

impl Filter {
    /// Returns the filter of a node without Services.
    ///
    /// The kernel's rules count as unknown.
    pub fn new(config: FilterConfig) -> Self {
        let node = NodeFacts::default();
        Self {
            ruleset: Ruleset::on(&config, &node),
            config,
            node,
            links: LinkAddresses::new(),
        }
    }

    /// Returns the bits of packet marks that mean something to our rules or to those of Kubernetes.
    pub(crate) fn mark_bits(&self) -> u32 {
        let accepting = self.config.input_accept_bit.map_or(0, MarkBit::mark);
        // The plugin portmap, and the kubelet, whose rule drops packets.
        const OF_OTHERS: u32 = 1 << 13 | 1 << 15;
        self.config.masquerade_bit.mark() | accepting | OF_OTHERS
    }

    /// Returns whether `port` is in the range of node ports (`--service-node-port-range`).
    pub(crate) fn is_node_port(&self, port: u16) -> bool {
        self.config.node_ports.contains(&port)
    }

    /// Returns the rules that the kernel should have.
    pub fn table(&self) -> &Table {
        self.ruleset.table()
    }

    /// Returns the fingerprint of [`Filter::table`].
    pub fn fingerprint(&self) -> Fingerprint {
        self.ruleset.fingerprint()
    }

    /// Returns a Problem for each family in which Services have policy Local and Pods cannot be recognised by
    /// their addresses.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let of_cluster: &[Cidr] = match &self.config.local_mode {
            LocalMode::ClusterCidr(networks) => networks,
            LocalMode::NodeCidr => &[],
            LocalMode::BridgeInterface(_) | LocalMode::InterfaceNamePrefix(_) => return Vec::new(),
        };
        let mut problems = Vec::new();
        for (family, name) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let mut known = of_cluster.iter().chain(&self.node.pod_cidrs);
            let is_known = known.any(|network| network.family() == family);
            if !is_known && self.ruleset.has_inside_clients(family) {
                let instead = "at Services with externalTrafficPolicy Local, Pods may count as clients outside, \
                               which reach only endpoints on this node";
                let (field, message) = match self.config.local_mode {
                    LocalMode::NodeCidr => (
                        "detectLocalMode",
                        "is NodeCIDR, and the Node has no podCIDRs",
                    ),
                    _ => ("clusterCIDR", "is not set, and the Node has no podCIDRs"),
                };
                let message = format!("{message} of {name}: {instead}");
                problems.push(Problem::new("Configuration", field, "", message));
            }
        }
        problems
    }

    /// Returns whether the kernel has the ruleset, except for pending commands.
    ///
    /// `false` if the kernel's rules are unknown: the next write is the whole table.
    pub fn is_in_step(&self) -> bool {
        self.ruleset.is_recording()
    }

    /// Updates the rules to the plan, which differs from that of the last call in `changed`.
    ///
    /// # Cost
    /// Proportional to the change; to the whole plan if our Node's addresses or networks changed.
    pub fn follow(&mut self, wanted: Wanted<'_>, changed: &Changed, node: Option<&Node>) {
        let node = NodeFacts::of(node);
        if node == self.node {
            self.update(wanted, changed);
        } else {
            // Source ranges and the networks of inside clients depend on the node, so any rule may change.
            self.node = node;
            self.rebuild(wanted);
        }
        // After a start or another change of most frontends, the maps have much spare memory.
        if changed.frontends.len() > wanted.desired().frontends.len() / 2 {
            self.ruleset.pack();
        }
    }

    /// Returns whether rules depend on the addresses of links (`--arp=services`).
    pub(crate) fn needs_links(&self) -> bool {
        self.config.hides_arp
    }

    /// Sets the addresses with which the node sends ARP requests, by link.
    pub(crate) fn set_links(&mut self, links: &LinkAddresses) {
        if self.links != *links {
            self.links.clone_from(links);
            self.ruleset.set_links(links);
        }
    }

    /// Marks the kernel's rules as unknown, so that the next write is the whole table.
    pub fn distrust(&mut self) {
        self.ruleset.stop_recording();
    }

    /// Marks the rules as written if their fingerprint is `fingerprint`, which the kernel's rules have.
    pub fn trust(&mut self, fingerprint: Fingerprint) {
        if self.ruleset.fingerprint() == fingerprint {
            self.written();
        }
    }

    /// Guards stale frontends and service addresses until [`Filter::release`].
    ///
    /// Needed before a write of the whole table: the kernel may have virtual servers of an earlier process,
    /// for which the table lacks guards.
    pub fn guard(
        &mut self,
        frontends: impl IntoIterator<Item = Frontend>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) {
        for frontend in frontends.into_iter().filter(has_rules) {
            self.ruleset.guard_frontend(frontend);
        }
        for address in addresses {
            self.ruleset.guard_address(address);
        }
    }

    /// Rejects new connections to the frontend of a retired virtual server until [`Filter::release`].
    ///
    /// The new guard does not depend on the guard that the frontend had. So the rules of a new process equal
    /// those that an earlier process wrote, and need no write.
    pub fn retire(&mut self, frontend: Frontend) {
        if has_rules(&frontend) {
            self.ruleset.replace_guard(frontend);
        }
    }

    /// Removes the guards that are not needed in the state `observed`. Returns whether there were any.
    ///
    /// These are the guards of stale frontends that the kernel no longer has, of desired frontends that have
    /// a destination with a weight above 0, and of addresses that are no longer service addresses.
    pub fn release(&mut self, observed: &Observed, machine: &Machine) -> bool {
        let may_release_frontend = |frontend: &Frontend, admission: Option<&Admission>| {
            let server = observed
                .virtual_servers
                .get(&ipvs::ServiceKey::from(*frontend));
            match admission {
                None => server.is_none(),
                Some(_) => server.is_some_and(ObservedServer::accepts_connections),
            }
        };
        let may_release_address =
            |address: &IpAddr| !observed.has_address(*address) || machine.has(address);
        (self.ruleset).release(may_release_frontend, may_release_address)
    }

    /// Returns the write that is needed now; `None` if the kernel has all rules.
    ///
    /// The caller reports the result by [`Filter::written`] or [`Filter::distrust`].
    pub fn pending(&mut self) -> Option<Write> {
        if !self.is_in_step() {
            return Some(Write::Table);
        }
        let commands = self.ruleset.take_commands();
        (!commands.is_empty()).then_some(Write::Commands(commands))
    }

    /// Notes that the kernel has all rules as they are now.
    pub fn written(&mut self) {
        self.ruleset.record();
    }

    /// Updates the rules of frontends whose mark changed.
    pub(crate) fn follow_marks(&mut self, wanted: Wanted<'_>, changes: &MarkChanges) {
        for frontend in changes.frontends.iter().copied().filter(has_rules) {
            let admission = wanted.admission(&frontend);
            self.ruleset.set_frontend(frontend, admission);
        }
    }

    fn update(&mut self, wanted: Wanted<'_>, changed: &Changed) {
        let desired = wanted.desired();
        let rules = &mut self.ruleset;
        for frontend in changed.frontends.iter().copied().filter(has_rules) {
            rules.set_frontend(frontend, wanted.admission(&frontend));
        }
        for &address in &changed.addresses {
            match desired.addresses.contains_key(&address) {
                true => rules.add_service_address(address),
                false => rules.remove_service_address(address),
            }
        }
        for &address in &changed.local_endpoints {
            match desired.local_endpoints.contains(&address) {
                true => rules.add_local_endpoint(address),
                false => rules.remove_local_endpoint(address),
            }
        }
        for &port in &changed.health_checks {
            match desired.health_checks.contains_key(&port) {
                true => rules.add_health_check_port(port),
                false => rules.remove_health_check_port(port),
            }
        }
    }

    fn rebuild(&mut self, wanted: Wanted<'_>) {
        let desired = wanted.desired();
        self.ruleset = Ruleset::on(&self.config, &self.node);
        self.ruleset.set_links(&self.links);
        let rules = &mut self.ruleset;
        for frontend in desired.frontends.keys().copied().filter(has_rules) {
            rules.set_frontend(frontend, wanted.admission(&frontend));
        }
        for &address in desired.addresses.keys() {
            rules.add_service_address(address);
        }
        for &address in &desired.local_endpoints {
            rules.add_local_endpoint(address);
        }
        for &port in desired.health_checks.keys() {
            rules.add_health_check_port(port);
        }
    }
}

/// Returns whether the frontend has packet rules.
///
/// A frontend at a loopback address has none: a relay serves it, and decides itself which clients may
/// connect.
fn has_rules(frontend: &Frontend) -> bool {
    !frontend.address.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_recorded_only_if_the_kernel_has_the_rules_before_them() {
        let address = |last| IpAddr::from([10, 96, 0, last]);
        let mut filter = Filter::new(FilterConfig::default());
        filter.guard([], [address(1)]);
        assert_eq!(filter.ruleset.take_commands(), []);
        assert_eq!(filter.pending(), Some(Write::Table));
        filter.written();
        filter.guard([], [address(2)]);
        assert!(matches!(filter.pending(), Some(Write::Commands(commands)) if commands.len() == 1));
        filter.guard([], [address(3)]);
        filter.distrust();
        filter.trust(filter.fingerprint());
        assert_eq!(filter.pending(), None);
    }
}
