//! The packet rules that Services need beside IPVS, computed from the plan without I/O.
//!
//! The rules of a frontend, an address or a firewall mark are a function of the plan and of the guards:
//!
//! ```text
//!  plan, guards ─┬▶ parts of the touched objects, before and after ─▶ Changes ─▶ commands of a transaction
//!                └▶ parts of all objects ──────────────────────────────────────▶ the whole table
//! ```
//!
//! The table is not in memory: it is made when it must be written, compared or printed.
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
//! * *unallocated* (0, at forward and output): rejects new connections to addresses of the service ranges that no Service
//!   has. They are the only rules at the forward hook, and exist while service ranges are known.
//! * *masquerade*: changes the source of marked connections, and of connections of a Pod to itself,
//!   to an address of the node, before other programs' source NAT (100). A later chain clears the bit.
//!
//! The table is called [`TABLE`]. IPVS sends requests through the
//! output hook, and only the answers of endpoints are forwarded. If a chain of another program drops these
//! or the requests, only a rule in that chain can help, because a drop in any table is final. See
//! [`crate::host::ForeignChains`]; `filter/input_accept.rs` marks requests for such a rule.
//!
//! With `--arp=services`, a second table of the same name, of family `arp`, hides external addresses on the
//! node's links (`filter/arp.rs`).
//!
//! Rules tighten before the Ops of a round and loosen after them ([`Filter::release`]).

use crate::cluster::model::Node;
use crate::cluster::problem::Problem;
use crate::dataplane::ipvs::{MarkChanges, Wanted};
use crate::dataplane::packet_rules::{
    Changes, HAIRPIN, HEALTH_CHECK_PORTS, Part, Parts, unallocated,
};
use crate::plan::Changed;
use crate::plan::frontend::Frontend;
use nftables::{Command, Set, Table, Value, hash};

mod addresses;
mod admission;
mod arp;
mod chains;
mod config;
mod guards;
mod input_accept;
mod inside;
mod names;
mod nat;
mod record;
mod view;

pub(crate) use arp::LinkAddresses;
pub use config::{FilterConfig, LocalMode, MarkBit};
pub(crate) use config::{NodeFacts, unknown_pods};

use guards::Guards;
pub(crate) use record::recorded;
use view::{Subjects, View, has_rules};

/// The name of the table of family `inet`, and of its companion of family `arp`.
pub const TABLE: &str = "ipvs-proxier";

/// The number of parts after which the sets of a table that is made are packed. The table of a large cluster is made at a
/// start, when the memory of the process is at its peak.
const PACKED_AFTER: u32 = 20_000;

/// The sum of the hashes of a table's parts.
///
/// Tables with equal fingerprints count as equal. With 64 bits, a false match is improbable. A sum, so that a
/// change of one part costs only the hashes of that part.
pub(crate) type Fingerprint = u64;

/// The packet rules of this node: what they depend on beside the plan, and whether the kernel has them.
///
/// The methods get the plan of the last call of [`Filter::follow`].
#[derive(Clone, Debug)]
pub struct Filter {
    config: FilterConfig,
    node: NodeFacts,
    links: LinkAddresses,
    guards: Guards,
    /// The rules that the kernel has; `None` if they are unknown.
    written: Option<Written>,
}

/// The rules as last written, and their changes since.
#[derive(Clone, Debug)]
struct Written {
    fingerprint: Fingerprint,
    changes: Changes,
}

/// A write that gives the kernel the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// What to write.
    pub content: Content,
    /// The fingerprint of the rules after the write.
    pub fingerprint: u64,
}

/// The content of a [`Write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These commands, in one transaction.
    Commands(Vec<Command>),
    /// The whole table, because the kernel's present rules are unknown.
    Table(Table),
}

impl Filter {
    /// Returns the filter of a node without Services.
    ///
    /// The kernel's rules count as unknown.
    pub fn new(config: FilterConfig) -> Self {
        Self {
            config,
            node: NodeFacts::default(),
            links: LinkAddresses::new(),
            guards: Guards::default(),
            written: None,
        }
    }

    /// Returns the bits of packet marks that mean something to our rules or to those of Kubernetes.
    pub(crate) fn mark_bits(&self) -> u32 {
        let accepting = self.config.input_accept_bit.map_or(0, MarkBit::mark);
        // The plugin portmap, and the kubelet, whose rule drops packets.
        const OF_OTHERS: u32 = 1 << 13 | 1 << 15;
        self.config.masquerade_bit.mark() | accepting | OF_OTHERS
    }

    /// Returns the choices of the operator about packet rules.
    pub(crate) fn config(&self) -> &FilterConfig {
        &self.config
    }

    /// Returns the rules that the kernel should have.
    ///
    /// # Cost
    /// Linear in the plan.
    pub fn table(&self, wanted: Wanted<'_>) -> Table {
        let mut table = chains::skeleton(&self.config, &self.node);
        let subjects = Subjects::all(wanted.desired(), &self.guards);
        let mut count = 0;
        let mut add = |part: Part| {
            part.put_into(&mut table);
            count += 1;
            if count % PACKED_AFTER == 0 {
                table.sets.values_mut().for_each(Set::pack);
            }
        };
        self.add_parts(View::now(wanted), &subjects, &mut add);
        arp::link_parts(&self.links, &mut add);
        table
    }

    /// As [`unknown_pods`].
    pub(crate) fn problems(&self, wanted: Wanted<'_>) -> Vec<Problem> {
        let is_needed = |family| {
            let mut marked = wanted.marks().frontends();
            marked.any(|it: &Frontend| it.family() == family && has_rules(it))
        };
        unknown_pods(&self.config, &self.node, is_needed)
    }

    /// Returns whether the kernel has the rules, except for pending commands.
    ///
    /// `false` if the kernel's rules are unknown: the next write is the whole table.
    pub fn is_in_step(&self) -> bool {
        self.written.is_some()
    }

    /// Updates the rules to the plan, which differs from that of the last call in `changed` and `marks`.
    ///
    /// # Cost
    /// Proportional to the change. If our Node's addresses or networks changed, the next write is the whole
    /// table.
    pub fn follow(
        &mut self,
        wanted: Wanted<'_>,
        changed: &Changed,
        marks: &MarkChanges,
        node: Option<&Node>,
    ) {
        let node = NodeFacts::of(node);
        if node != self.node {
            // Source ranges and the networks of inside clients depend on the node, so any rule may change.
            self.node = node;
            self.written = None;
        }
        let (then, now) = (View::before(wanted, changed, marks), View::now(wanted));
        let subjects = Subjects::of([then, now], changed, marks);
        self.change([then, now], &subjects, |filter| {
            filter.keep_guards(&subjects, then, now);
        });
    }

    /// Returns whether rules depend on the addresses of links (`--arp=services`).
    pub(crate) fn needs_links(&self) -> bool {
        self.config.hides_arp
    }

    /// Sets the addresses with which the node sends ARP requests, by link.
    pub fn set_links(&mut self, links: &LinkAddresses) {
        let parts = |links: &LinkAddresses| {
            let mut parts = Parts::new();
            arp::link_parts(links, &mut |part| _ = parts.insert(part.name(), part));
            parts
        };
        if let Some(written) = &mut self.written {
            written.changes.note(parts(&self.links), parts(links));
        }
        self.links.clone_from(links);
    }

    /// Marks the kernel's rules as unknown, so that the next write is the whole table.
    pub fn distrust(&mut self) {
        self.written = None;
    }

    /// Notes that the kernel has rules with this fingerprint, which may be those of the plan.
    pub fn trust(&mut self, wanted: Wanted<'_>, fingerprint: Fingerprint) {
        if self.written.is_none() && hash::table(&self.table(wanted)) == fingerprint {
            self.written(fingerprint);
        }
    }

    /// Returns the write that is needed now; `None` if the kernel has all rules.
    ///
    /// The caller reports the result by [`Filter::written`] or [`Filter::distrust`].
    ///
    /// # Cost
    /// Proportional to the changes since the last write; linear in the plan if the kernel's rules are unknown.
    pub fn pending(&self, wanted: Wanted<'_>) -> Option<Write> {
        let Some(written) = &self.written else {
            let table = self.table(wanted);
            return Some(Write {
                fingerprint: hash::table(&table),
                content: Content::Table(table),
            });
        };
        let (old, new) = written.changes.tables(|| chains::sets(&self.config))?;
        let fingerprint = written.fingerprint.wrapping_sub(hash::parts(&old));
        Some(Write {
            fingerprint: fingerprint.wrapping_add(hash::parts(&new)),
            content: Content::Commands(old.difference(&new)),
        })
    }

    /// Notes that the kernel has all rules as they are now, which have this fingerprint.
    pub fn written(&mut self, fingerprint: Fingerprint) {
        let changes = Changes::default();
        self.written = Some(Written {
            fingerprint,
            changes,
        });
    }

    /// Changes the guards, and notes how the parts of `subjects` change from the first view to the second.
    fn change(
        &mut self,
        [before, after]: [View<'_>; 2],
        subjects: &Subjects,
        change: impl FnOnce(&mut Self),
    ) {
        let old = self.parts(before, subjects);
        change(self);
        let new = self.parts(after, subjects);
        if let Some(written) = &mut self.written {
            written.changes.note(old, new);
        }
    }

    /// Returns the parts of `subjects`; none if they are not needed, because the next write is the whole table.
    fn parts(&self, view: View<'_>, subjects: &Subjects) -> Parts {
        let mut parts = Parts::new();
        if self.is_in_step() {
            let mut add = |part: Part| _ = parts.insert(part.name(), part);
            self.add_parts(view, subjects, &mut add);
        }
        parts
    }

    fn add_parts(&self, view: View<'_>, subjects: &Subjects, add: &mut dyn FnMut(Part)) {
        for frontend in &subjects.frontends {
            self.add_frontend(frontend, view, add);
        }
        for &address in &subjects.addresses {
            self.add_address(address, view, add);
        }
        for &address in &subjects.local_endpoints {
            if view.plan.has_local_endpoint(address) {
                let set = HAIRPIN.of(address.into());
                add(Part::member(set, [address.into(), address.into()]));
            }
        }
        for &port in &subjects.health_checks {
            if view.plan.has_health_check(port) {
                add(Part::member(HEALTH_CHECK_PORTS, [Value::Port(port)]));
            }
        }
        if subjects.service_ranges {
            unallocated(view.plan.service_ranges())
                .into_iter()
                .for_each(add);
        }
    }
}
