//! The packet filter that Services need: a pure function of the plan. IPVS does the rest.
//!
//! ```text
//!  Desired, Changed ─▶ Filter::follow ──▶ Ruleset ──▶ Filter::pending ──▶ Write: these commands,
//!          Observed ─▶ Filter::release ─┘                                 or the whole table
//! ```
//!
//! What packets meet on their way:
//!
//! ```text
//!              prerouting      input                                 IPVS          output        postrouting
//!  a client ──▶ (nothing) ──▶  0: guard, mark, refuse ─▶ 97: inside ─▶ 98, 99 ──▶ -300: restore ─▶ masquerade ──▶ endpoint
//!  a process of the node ───────────────▶ output -110: guard, mark ─▶ -99: inside ─▶ IPVS -98 ──▶ the same again
//! ```
//!
//! * *guard*: rejects or drops new connections to a frontend: by source ranges, or because it has no
//!   endpoints, or because it is stale.
//! * *mark*: sets the masquerade bit of connections whose answers must return through this node.
//! * *refuse*: rejects what is addressed to a service address and no frontend. Service addresses are
//!   local, so a daemon of the node that listens on all addresses would answer there.
//! * *inside*: sets the firewall mark by which IPVS finds the endpoints that only clients inside the
//!   cluster may use. IPVS compares the whole mark, so the earlier one is kept and restored after.
//! * *masquerade*: gives marked connections, and connections of a Pod to itself, an address of the
//!   node as source, and clears the bit.
//!
//! The table is called [`TABLE`]. It has no rules for forwarded packets: IPVS sends requests itself;
//! answers are forwarded as packets of established connections. No table can overrule another
//! table's drop, so a forward chain of another program that drops answers must itself accept them:
//! [`crate::nftables::Forwarding`].
//!
//! Rules tighten before the Ops of a round and loosen after them ([`Ruleset::release`]).

use std::net::IpAddr;

use ipvs_netlink as ipvs;

use crate::frontend::Frontend;
use crate::model::Node;
use crate::nftables::{Command, Table};
use crate::observed::Observed;
use crate::plan::{Admission, Changed, Desired, Machine};

mod admission;
mod chains;
mod config;
mod guards;
mod names;
mod ruleset;

pub use config::{FilterConfig, LocalMode, MasqueradeBit};
pub use ruleset::{Fingerprint, Ruleset};

use config::NodeFacts;

/// The name of the table (family `inet`).
pub const TABLE: &str = "ipvs-proxier";

/// The packet rules of this node, and whether the kernel has them.
#[derive(Debug)]
pub struct Filter {
    config: FilterConfig,
    node: NodeFacts,
    ruleset: Ruleset,
    /// Whether the kernel has the ruleset, but for the commands that were not taken yet.
    is_in_step: bool,
}

/// What to write so that the kernel has the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// These commands, in one transaction.
    Commands(Vec<Command>),
    /// The whole table, whatever the kernel has.
    Table,
}

impl Filter {
    /// Returns the filter of a node without Services; the kernel's rules are unknown.
    pub fn new(config: FilterConfig) -> Self {
        let node = NodeFacts::default();
        Self {
            ruleset: Ruleset::on(&config, &node),
            config,
            node,
            is_in_step: false,
        }
    }

    /// The rules that the kernel should have; prints in nft's syntax.
    pub fn table(&self) -> &Table {
        self.ruleset.table()
    }

    /// The fingerprint of the rules.
    pub fn fingerprint(&self) -> Fingerprint {
        self.ruleset.fingerprint()
    }

    /// Whether the kernel has all rules, as far as known.
    pub fn is_in_step(&self) -> bool {
        self.is_in_step
    }

    /// Follows the plan, of which `changed` differs from the last call.
    ///
    /// # Cost
    /// Proportional to the change, unless our Node's addresses or networks changed.
    pub fn follow(&mut self, desired: &Desired, changed: &Changed, node: Option<&Node>) {
        let node = NodeFacts::of(node);
        if node == self.node {
            self.update(desired, changed);
        } else {
            self.node = node;
            self.rebuild(desired);
        }
        if changed.virtual_servers.len() > desired.virtual_servers.len() / 2 {
            self.ruleset.pack();
        }
        self.forget_unless_in_step();
    }

    /// The kernel's rules may differ from those that were written last.
    pub fn distrust(&mut self) {
        self.is_in_step = false;
        self.ruleset.forget_commands();
    }

    /// The kernel has rules with this fingerprint, which are perhaps those that it should have.
    pub fn trust(&mut self, fingerprint: Fingerprint) {
        if self.ruleset.fingerprint() == fingerprint {
            self.written();
        }
    }

    /// Guards frontends and service addresses that the kernel has and the plan has not, until they
    /// are released.
    ///
    /// For rules that are about to be written as a whole: an earlier process may have left frontends
    /// whose guard the new table would lack.
    pub fn guard(
        &mut self,
        frontends: impl IntoIterator<Item = Frontend>,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) {
        for frontend in frontends {
            self.ruleset.guard_frontend(frontend);
        }
        for address in addresses {
            self.ruleset.guard_address(address);
        }
        self.forget_unless_in_step();
    }

    /// Removes the guards of frontends that are gone or have destinations at last, and of addresses
    /// that are no service addresses any more. Returns whether there were any.
    pub fn release(&mut self, observed: &Observed, machine: &Machine) -> bool {
        let is_frontend_done = |frontend: &Frontend, admission: Option<&Admission>| {
            let server = observed
                .virtual_servers
                .get(&ipvs::ServiceKey::from(*frontend));
            match admission {
                None => server.is_none(),
                Some(_) => server.is_some_and(|server| !server.destinations.is_empty()),
            }
        };
        let is_address_done = |address: &IpAddr| {
            !observed.addresses.contains_key(address) || machine.addresses.contains(address)
        };
        let is_any = self.ruleset.release(is_frontend_done, is_address_done);
        self.forget_unless_in_step();
        is_any
    }

    /// Returns what to write now; `None` if the kernel has all rules.
    ///
    /// The caller reports the result by [`Filter::written`] or [`Filter::distrust`].
    pub fn pending(&mut self) -> Option<Write> {
        if !self.is_in_step {
            return Some(Write::Table);
        }
        let commands = self.ruleset.take_commands();
        (!commands.is_empty()).then_some(Write::Commands(commands))
    }

    /// The kernel has all rules as they are now.
    pub fn written(&mut self) {
        self.is_in_step = true;
        self.ruleset.forget_commands();
    }

    fn update(&mut self, desired: &Desired, changed: &Changed) {
        let rules = &mut self.ruleset;
        for key in &changed.virtual_servers {
            if let Some(frontend) = Frontend::of(key) {
                rules.set_frontend(frontend, desired.admission(key));
            }
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

    fn rebuild(&mut self, desired: &Desired) {
        self.is_in_step = false;
        self.ruleset = Ruleset::on(&self.config, &self.node);
        let rules = &mut self.ruleset;
        for key in desired.virtual_servers.keys() {
            if let Some(frontend) = Frontend::of(key) {
                rules.set_frontend(frontend, desired.admission(key));
            }
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

    /// While the whole table is to be written, commands would only cost memory.
    fn forget_unless_in_step(&mut self) {
        if !self.is_in_step {
            self.ruleset.forget_commands();
        }
    }
}
