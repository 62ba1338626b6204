//! Keeping the kernel's table equal to that of the plan.
//!
//! While the kernel has the table, a round writes the commands of its changes, in one transaction. Otherwise (at the start,
//! after a refusal, after a change by another program) the kernel's table is read and its differences are written. It is not
//! replaced: it has the clients of session affinity, and while it is away, no packet of a translated connection is
//! translated. If there is none, it is created in several transactions, and only the last one gives it an effect.

use std::collections::BTreeMap;
use std::time::Duration;

use nftables::{Command, RulesClient, Table, TransactionError};
use tracing::Level;

use super::chains;
use super::changes::{self, Changes, Content};
use super::names::{ENDPOINTS, EXTERNAL_FRONTENDS};
use super::parts;
use super::table::ServiceTable;
use crate::dataplane::ipvs::filter::FilterConfig;
use crate::dataplane::packet_rules::FAMILIES;
use crate::dataplane::{Extent, Failure, Planned};
use crate::plan::{Changed, Desired};
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

    /// Reads the frontends of the kernel's table, perhaps of an earlier process: the slots of all, the names of the
    /// external ones and of those that are counted.
    pub(super) fn read_frontends(&mut self) -> Result<Table, Failure> {
        let mut found = Table::default();
        for family in FAMILIES {
            let names = [ENDPOINTS, EXTERNAL_FRONTENDS].map(|name| name.of(family));
            let sets = parts::sets(family).filter(|set| names.contains(&&*set.name));
            for set in sets.chain([chains::counters(family)]) {
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
        table.follow(desired, changed);
        if !table.is_on(node) {
            table.move_to(desired, node);
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
    pub(super) fn changes(
        &mut self,
        desired: &Desired,
        extent: Extent,
        now: Duration,
    ) -> Result<Changes, Failure> {
        if extent == Extent::All {
            self.find_changes()?;
        }
        let is_waiting = self.retry.is_waiting(now);
        let Some(table) = self.table.as_mut() else {
            return Ok(Changes::default());
        };
        let planned = table.take_commands();
        if is_waiting {
            self.state = State::Unknown;
            return Ok(Changes::default());
        }
        let content = match self.state {
            State::InStep => {
                return Ok(Changes {
                    content: Content::Commands(planned),
                    drifted_from: None,
                });
            }
            State::Unknown | State::Suspect => match self.client.exists()? {
                true => self.client.difference(&table.table(desired))?,
                false => None,
            },
        };
        let is_told = self.state == State::Suspect && planned.len() <= MOST_TOLD;
        Ok(Changes {
            content: content.map_or(Content::Table(BTreeMap::new()), Content::Commands),
            drifted_from: is_told.then_some(planned),
        })
    }

    /// Writes the changes: commands in one transaction, a whole table in several. `None` if nothing is written.
    pub(super) fn write(
        &mut self,
        desired: &Desired,
        changes: &mut Changes,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        let table = self.table.as_ref()?;
        if self.retry.is_waiting(now) {
            return None;
        }
        let client = &mut self.client;
        let written = match &mut changes.content {
            Content::Commands(commands) if commands.is_empty() => {
                self.state = State::InStep;
                self.retry.reset();
                return None;
            }
            Content::Commands(commands) => match client.apply(commands) {
                Err(error) if error.is_out_of_step() => {
                    let text =
                        format_args!("{error}; reading all packet rules back to repair them");
                    let kind = "refused changes of packet rules, each repaired";
                    (self.events).add(Coverage::Events, Level::WARN, kind, text, now);
                    client.restore(&table.table(desired))
                }
                other => other,
            },
            Content::Table(kinds) => {
                let each =
                    |command: &Command| *kinds.entry(changes::kind(command)).or_default() += 1;
                create(client, table, desired, each)
            }
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
    pub(super) fn tidy(
        &mut self,
        desired: &Desired,
        extent: Extent,
        now: Duration,
    ) -> Option<Result<(), Failure>> {
        let table = self.table.as_mut()?;
        if self.state != State::InStep {
            return None;
        }
        let mut tidied = table.forget_removed(desired, &mut self.client);
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

/// Writes the whole table, and calls `each` with every command.
fn create(
    client: &mut RulesClient,
    table: &ServiceTable,
    desired: &Desired,
    mut each: impl FnMut(&Command),
) -> Result<(), TransactionError> {
    if client.exists()? {
        // It may have an effect, so all of it changes at once.
        let table = table.table(desired);
        table.creation().for_each(|command| each(&command));
        return client.replace(&table);
    }
    client.create(&table.frame(), table.pieces(desired), each)?;
    match client.generation() {
        Some(_) => Ok(()),
        None => client.restore(&table.table(desired)),
    }
}
