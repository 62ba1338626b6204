//! The packet rules of this node: the plan's frontends, as [`crate::rules`] wants them.
//!
//! ```text
//! Changed, Desired ─▶ Packets::follow ──▶ Ruleset ─▶ Packets::program ─▶ Dataplane::change_rules
//!         Observed ─▶ Packets::release ─┘                             or Dataplane::replace_rules
//! ```
//!
//! Rules tighten before the frontends that they are for change, and loosen after: what
//! [`Packets::follow`] takes in keeps the guards of what is on its way out until
//! [`Packets::release`] sees that it is gone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::dataplane::{Dataplane, Failure};
use crate::nftables::Table;
use crate::plan::{Changed, Desired};
use crate::retry::Wait;
use crate::rules::{self, Place, Ruleset, Surplus};

mod config;
mod held;
mod place;
mod wanted;

pub use config::{Config, LocalMode};
use place::place;
use wanted::take;

/// The packet rules, and how far the kernel has them.
#[derive(Debug)]
pub struct Packets {
    choice: Config,
    config: rules::Config,
    ruleset: Ruleset,
    kernel: Kernel,
    /// What the plan does not have any more and the rules still do, since only part of the input is
    /// known.
    held: Changed,
    /// What becomes of rules in the kernel that these do not have: they stay until all input was
    /// known once, since they are perhaps those of what is not known yet.
    surplus: Surplus,
    /// When rules that the kernel refused are set again.
    retry: Wait,
}

/// What the kernel has of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kernel {
    /// All that was taken from the ruleset.
    InStep,
    /// Nothing.
    Nothing,
    /// This, of a ruleset that has more.
    Part(Box<Table>),
    /// Something else, or perhaps nothing.
    Unknown,
}

impl Packets {
    /// The rules of a node without Services.
    pub fn new(choice: Config) -> Self {
        let config = choice.on(None);
        Self {
            choice,
            ruleset: Ruleset::new(config.clone()),
            config,
            kernel: Kernel::Unknown,
            held: Changed::default(),
            surplus: Surplus::Stays {
                own: Arc::default(),
            },
            retry: Wait::default(),
        }
    }

    /// The kernel's rules are perhaps not what was set last.
    pub fn distrust(&mut self) {
        self.kernel = Kernel::Unknown;
    }

    /// The kernel has no rules of ours.
    pub fn lost(&mut self) {
        self.kernel = Kernel::Nothing;
    }

    /// Whether the kernel has no rules of ours.
    pub fn are_lost(&self) -> bool {
        self.kernel == Kernel::Nothing
    }

    /// Sets, of all rules, those that the frontends at these addresses need, so that they need not
    /// wait for the others. Only where the rules [are lost](Packets::are_lost), so that nobody loses
    /// any. Answers whether that was done. [`Packets::program`] sets the others.
    pub fn begin(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
        desired: &Desired,
        dataplane: &mut impl Dataplane,
    ) -> bool {
        let mut first = Ruleset::new(self.config.clone());
        let servers = desired.virtual_servers.keys();
        let is_first = |place: Place| addresses.contains(&place.address);
        let servers = servers.filter(|key| place(key).is_some_and(is_first));
        take(
            &mut first,
            desired,
            servers,
            addresses,
            &desired.local_endpoints,
            [],
        );
        let table = first.table();
        // What fails here fails when all rules are set, too, and is told and tried again there.
        let is_done = dataplane.replace_rules(table, &self.surplus).is_ok();
        self.kernel = match is_done {
            true => Kernel::Part(Box::new(table.clone())),
            false => Kernel::Unknown,
        };
        is_done
    }

    /// The kernel has rules with this fingerprint, which are perhaps those that it should have.
    pub fn trust(&mut self, fingerprint: rules::Fingerprint) {
        if self.ruleset.fingerprint() == fingerprint {
            self.agree();
        }
    }

    /// Tells the rules as they should be from others; `None` while the kernel may have more.
    pub fn fingerprint(&self) -> Option<rules::Fingerprint> {
        (self.surplus == Surplus::Goes).then(|| self.ruleset.fingerprint())
    }

    /// The rules as they should be; prints in nft's syntax.
    pub fn table(&self) -> &Table {
        self.ruleset.table()
    }

    /// When rules that the kernel refused are to be set again.
    pub fn next_due(&self) -> Option<Duration> {
        self.retry.due()
    }

    /// Sets what changed, in one transaction, or everything where the kernel's rules are not known;
    /// `None` when there is nothing to set. Answers the number of the state that it led to.
    pub fn program(
        &mut self,
        dataplane: &mut impl Dataplane,
        now: Duration,
    ) -> Option<Result<Option<u32>, Failure>> {
        if self.retry.due().is_some_and(|due| now < due) {
            return None;
        }
        let outcome = match &self.kernel {
            Kernel::InStep => {
                let changes = self.ruleset.take_changes();
                if changes.is_empty() {
                    return None;
                }
                dataplane.change_rules(self.ruleset.table(), &changes, &self.surplus)
            }
            Kernel::Part(part) => {
                let table = self.ruleset.table();
                dataplane.change_rules(table, &part.difference(table), &self.surplus)
            }
            Kernel::Nothing | Kernel::Unknown => {
                dataplane.replace_rules(self.ruleset.table(), &self.surplus)
            }
        };
        if outcome.is_ok() {
            self.agree();
        } else {
            self.kernel = Kernel::Unknown;
            self.retry.failed(now);
        }
        Some(outcome)
    }

    /// The kernel has all rules as they are now.
    fn agree(&mut self) {
        self.ruleset.forget_changes();
        self.kernel = Kernel::InStep;
        self.retry = Wait::default();
    }

    /// Whether the kernel has all rules.
    pub fn is_in_step(&self) -> bool {
        self.kernel == Kernel::InStep
    }
}
