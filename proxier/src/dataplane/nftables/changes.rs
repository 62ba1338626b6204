//! The changes of a round: commands of one transaction.

use std::collections::BTreeMap;
use std::fmt;

use nftables::{Command, Key};

use super::TABLE;
use super::affinity::frontend;
use crate::dataplane::{AppliedChange, Reason};
use crate::plan::Desired;

/// The changes of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// What is written.
    pub content: Content,
    /// If other programs may have changed the table: the commands that the plan needs anyway.
    pub drifted_from: Option<Vec<Command>>,
}

/// What a round writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These commands.
    Commands(Vec<Command>),
    /// The whole table, because the kernel has none, or one that cannot be ours. With the number of commands of each kind,
    /// after they are written.
    Table(BTreeMap<&'static str, usize>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Commands(Vec::new())
    }
}

impl Changes {
    /// Returns the number of commands that are written.
    pub(super) fn count(&self) -> usize {
        match &self.content {
            Content::Commands(commands) => commands.len(),
            Content::Table(kinds) => kinds.values().sum(),
        }
    }

    /// Calls `each` for every command, in order, or once for each kind if they are the whole table.
    pub(super) fn report(&self, desired: &Desired, each: &mut dyn FnMut(AppliedChange<'_>)) {
        let outcome = Ok(());
        match &self.content {
            Content::Commands(commands) => commands.iter().for_each(|command| {
                each(AppliedChange {
                    kind: kind(command),
                    count: 1,
                    line: &NamedCommand { command, desired },
                    reason: self.reason(command),
                    outcome,
                });
            }),
            Content::Table(kinds) => kinds.iter().for_each(|(&kind, &count)| {
                each(AppliedChange {
                    kind,
                    count,
                    line: &format_args!("create table inet {TABLE}: {count} x {kind}"),
                    reason: match self.drifted_from {
                        Some(_) => Reason::Drift,
                        None => Reason::Plan,
                    },
                    outcome,
                });
            }),
        }
    }

    /// Returns why `command` is needed.
    fn reason(&self, command: &Command) -> Reason {
        match &self.drifted_from {
            Some(planned) if !planned.contains(command) => Reason::Drift,
            _ => Reason::Plan,
        }
    }
}

/// Returns the kind of `command`, as in the metrics.
pub(super) fn kind(command: &Command) -> &'static str {
    match command {
        Command::AddSet(_) => "add_set",
        Command::DeleteSet(_) => "delete_set",
        Command::AddElement(..) | Command::AddTarget(..) => "add_element",
        Command::DeleteElement(..) => "delete_element",
        Command::AddChain(..) => "add_chain",
        Command::DeleteChain(_) => "delete_chain",
        Command::AddRule(..) => "add_rule",
        Command::FlushChain(_) => "flush_chain",
        Command::AddArpTable | Command::DeleteArpTable | Command::InArpTable(_) => "arp",
    }
}

/// A command as nft takes it, with the name of its Service port: `add element .. (kube-system/dns:tcp)`.
pub(super) struct NamedCommand<'a> {
    pub(super) command: &'a Command,
    pub(super) desired: &'a Desired,
}

impl fmt::Display for NamedCommand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.command.in_table(TABLE).fmt(f)?;
        let plan = key(self.command).and_then(frontend);
        let plan = plan.and_then(|frontend| self.desired.frontends.get(&frontend));
        plan.map_or(Ok(()), |plan| write!(f, " ({})", plan.owner))
    }
}

fn key(command: &Command) -> Option<&Key> {
    match command {
        Command::AddElement(_, element) => Some(&element.key),
        Command::AddTarget(_, key, _) | Command::DeleteElement(_, key) => Some(key),
        _ => None,
    }
}
