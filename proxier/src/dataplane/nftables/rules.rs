//! Keeping the kernel's table equal to that of the plan.
//!
//! While the kernel has the table, a round writes the commands of its changes, in one transaction. Otherwise (at the start,
//! after a refusal, after a change by another program) the kernel's table is read and its differences are written. It is not
//! replaced: it has the clients of session affinity, and while it is away, no packet of a translated connection is
//! translated.

use std::time::Duration;

use nftables::{Command, RulesClient, Table};
use tracing::Level;

use super::changes::{Changes, Content};
use super::names::{ENDPOINTS, EXTERNAL_FRONTENDS};
use super::parts;
use super::table::ServiceTable;
use crate::dataplane::ipvs::filter::FilterConfig;
use crate::dataplane::packet_rules::FAMILIES;
use crate::dataplane::{Extent, Failure, Planned};
use crate::plan::Changed;
use crate::util::conditions::{Coverage, LastingConditions};
use crate::util::timer::Timer;

/// The most commands of a change of the plan that are told from those of a repair in the same round.
const MOST_TOLD: usize = 1_000;

/// The table of this node, and whether the kernel has it.
#[derive(Debug)]
pub(super) struct Rules {
    client: RulesClient,
    config: FilterConfig,
    /// The table of the plan; `None` before the first round.
    table: Option<ServiceTable>,
    /// The commands of the changes of the table since the last write.
    pending: Vec<Command>,
    state: State,
    /// Set while the last write was refused.
    retry: Timer,
    /// Repairs that were logged.
    events: LastingConditions,
}

/// What is known of the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Unknown,
    /// It was as we wrote it, and another program may have changed it since.
    Suspect,
    /// It lacks the pending commands only.
    InStep,
}

impl Rules {
    pub(super) fn new(client: RulesClient, config: FilterConfig) -> Self {
        Self {
            client,
            config,
            table: None,
            pending: Vec::new(),
            state: State::Unknown,
            retry: Timer::retry(),
            events: LastingConditions::default(),
        }
    }

    pub(super) fn client(&mut self) -> &mut RulesClient {
        &mut self.client
    }

    pub(super) fn port(&self) -> u32 {
        self.client.port()
    }

    /// Returns the table of the plan; `None` before the first round.
    pub(super) fn table(&self) -> Option<&ServiceTable> {
        self.table.as_ref()
    }

    /// Returns whether the kernel has the table, except for pending commands.
    pub(super) fn are_in_step(&self) -> bool {
        self.state == State::InStep
    }

    /// Returns when a refused write is tried again.
    pub(super) fn retry_due(&self) -> Option<Duration> {
        self.retry.due()
    }

    /// Reads the frontends of the kernel's table, perhaps of an earlier process: the slots of all, and the names of the
    /// external ones.
    pub(super) fn read_frontends(&mut self) -> Result<Table, Failure> {
        let mut found = Table::default();
        for family in FAMILIES {
            let names = [ENDPOINTS, EXTERNAL_FRONTENDS].map(|name| name.of(family));
            for set in parts::sets(family).filter(|set| names.contains(&&*set.name)) {
                found.add_set(self.client.read_elements(&set)?);
            }
        }
        Ok(found)
    }

    /// Makes the first table, with slots as in `model`.
    pub(super) fn start(&mut self, planned: Planned<'_>, model: &Table) {
        let node = planned.snapshot.node();
        let table = ServiceTable::like(model, planned.desired(), &self.config, node);
        self.table = Some(table);
    }

    /// Follows a change of the plan, or of our Node.
    pub(super) fn follow(&mut self, planned: Planned<'_>, changed: &Changed) {
        let (desired, node) = (planned.desired(), planned.snapshot.node());
        let Some(table) = &mut self.table else {
            return;
        };
        if table.is_on(node) {
            self.pending.extend(table.follow(desired, changed));
        } else {
            // Any rule may depend on our Node.
            *table = ServiceTable::like(table.table(), desired, &self.config, node);
            self.state = State::Unknown;
        }
    }

    /// Notes that another program may have changed the kernel's table.
    pub(super) fn suspect(&mut self) {
        if self.state == State::InStep {
            self.state = State::Suspect;
        }
    }

    /// Suspects the kernel's table if any program changed any rule since our last write. Returns whether one did.
    pub(super) fn find_changes(&mut self) -> Result<bool, Failure> {
        let expected = self.client.generation();
        let are_changed = self.are_in_step() && expected != Some(self.client.read_generation()?);
        if are_changed {
            self.suspect();
        }
        Ok(are_changed)
    }

    /// Returns the changes that give the kernel the table. After a refusal there are none until it is tried again.
    ///
    /// # Cost
    /// Unless the kernel's table is in step, a dump of it.
    pub(super) fn changes(&mut self, extent: Extent, now: Duration) -> Result<Changes, Failure> {
        if extent == Extent::All {
            self.find_changes()?;
        }
        let planned = std::mem::take(&mut self.pending);
        let Some(table) = self.table.as_ref().filter(|_| !self.retry.is_waiting(now)) else {
            self.state = State::Unknown;
            return Ok(Changes::default());
        };
        let (content, drifted_from) = match self.state {
            State::InStep => (Content::Commands(planned), None),
            State::Unknown | State::Suspect => {
                let content = match self.client.difference(table.table())? {
                    Some(commands) => Content::Commands(commands),
                    None => Content::Table,
                };
                let is_told = self.state == State::Suspect && planned.len() <= MOST_TOLD;
                (content, is_told.then_some(planned))
            }
        };
        Ok(Changes {
            content,
            drifted_from,
        })
    }

    /// Writes the changes in one transaction. `None` if nothing is written.
    pub(super) fn write(
        &mut self,
        changes: &Changes,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        let table = self.table.as_ref()?.table();
        if self.retry.is_waiting(now) {
            return None;
        }
        let written = match &changes.content {
            Content::Commands(commands) if commands.is_empty() => {
                self.state = State::InStep;
                self.retry.reset();
                return None;
            }
            Content::Commands(commands) => match self.client.apply(commands) {
                Err(error) if error.is_out_of_step() => {
                    let text =
                        format_args!("{error}; reading all packet rules back to repair them");
                    let kind = "refused changes of packet rules, each repaired";
                    (self.events).add(Coverage::Events, Level::WARN, kind, text, now);
                    self.client.restore(table)
                }
                other => other,
            },
            Content::Table => self.client.replace(table),
        };
        self.settle(written.map_err(Failure::from), now)
    }

    fn settle(
        &mut self,
        written: Result<(), Failure>,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        if written.is_ok() {
            self.state = State::InStep;
            self.retry.reset();
        } else {
            // The answer may be lost although the kernel committed.
            self.state = State::Unknown;
            self.retry.back_off(now);
        }
        Some(written)
    }

    /// Makes the kernel forget the clients of removed endpoints, and after a resync deletes the chains that no frontend
    /// needs. `None` if there is nothing to do.
    pub(super) fn tidy(&mut self, extent: Extent, now: Duration) -> Option<Result<(), Failure>> {
        let table = self.table.as_mut()?;
        if self.state != State::InStep {
            return None;
        }
        let mut tidied = table.forget_removed(&mut self.client);
        if extent == Extent::All && tidied.is_ok() {
            let commands = table.sweep();
            tidied = self.client.apply(&commands);
        }
        match tidied {
            Ok(()) => None,
            Err(error) => self.settle(Err(error.into()), now),
        }
    }
}
