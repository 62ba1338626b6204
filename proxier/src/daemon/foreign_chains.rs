//! The chains of other programs that can drop packets of Services.

use std::fmt::Display;
use std::time::Duration;

use netlink::Error;
use tracing::Level;

use super::{Chore, Round};
use crate::dataplane::Dataplane;
use crate::host::{ChainReport, ForeignChains, ForeignHook};
use crate::sources::message::Message;
use crate::util::conditions::{Coverage, LastingConditions};

/// The shortest time between two checks. Without it, a program that flushes a chain again and again
/// would cause a check each time.
const PAUSE: Duration = Duration::from_secs(1);

/// The time from a check with failures to the next check.
const RETRY: Duration = Duration::from_secs(5);

/// Maintains our rules in foreign chains: at every resync, after a notification that a chain changed, and again
/// after a failure.
#[derive(Debug)]
pub(crate) struct ChainCheck {
    chains: ForeignChains,
    last_check: Option<Duration>,
    has_changed: bool,
    /// Whether the last check failed at a chain, or a rule waits for another.
    is_unfinished: bool,
    /// Chains that drop packets or cannot be checked, and tables of iptables-legacy.
    conditions: LastingConditions,
    /// Our insertions and removals.
    events: LastingConditions,
}

impl ChainCheck {
    pub(crate) fn new(chains: ForeignChains) -> Self {
        Self {
            chains,
            last_check: None,
            has_changed: false,
            is_unfinished: false,
            conditions: LastingConditions::default(),
            events: LastingConditions::default(),
        }
    }

    /// Returns when a check is due before the next resync, in time since boot.
    fn next_check(&self) -> Option<Duration> {
        let after = |pause| self.last_check.map_or(Duration::ZERO, |last| last + pause);
        if self.has_changed {
            Some(after(PAUSE))
        } else {
            self.is_unfinished.then(|| after(RETRY))
        }
    }

    /// Logs a check at `now`, in time since boot.
    fn log(&mut self, checked: &Result<ChainReport, Error>, now: Duration) {
        let mut report = self.conditions.report(Coverage::All, now);
        let failure =
            |failure: &dyn Display| format!("checking foreign chains: {failure}; trying again");
        let failures = "failures to check foreign chains";
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => {
                report.add(Level::WARN, failures, failure(error));
                return report.write();
            }
        };
        for chain in &checked.dropping {
            report.add(Level::WARN, "foreign chains that drop packets", chain);
        }
        for error in &checked.failures {
            report.add(Level::WARN, failures, failure(error));
        }
        for table in &checked.legacy_tables {
            report.add(Level::WARN, "tables of iptables-legacy", table);
        }
        report.write();
        let mut events = self.events.report(Coverage::Events, now);
        for chain in &checked.inserted {
            let words = match chain.hook() {
                ForeignHook::Forward => {
                    "drops forwarded packets; inserted our rule for packets of Services"
                }
                // At the output hook no rule is inserted.
                ForeignHook::Input | ForeignHook::Output => {
                    "drops incoming packets; inserted our rule for packets of Services"
                }
            };
            // Each chain is a kind: lines are limited by kind, so a program that removes our rule from one
            // chain again and again would otherwise hide the insertions into all chains.
            let kind = format!("insertions of our rule into {chain}");
            events.add(Level::INFO, &kind, format_args!("{chain} {words}"));
        }
        for chain in &checked.removed {
            let text = format_args!("{chain}: removed our rule");
            events.add(Level::INFO, "removals of our rule", text);
        }
        events.write();
    }
}

impl<D: Dataplane> Chore<D> for ChainCheck {
    fn due(&self) -> Option<Duration> {
        self.next_check()
    }

    fn receive(&mut self, message: &Message) {
        if let Message::RulesChanged(tampering) = message {
            self.has_changed |= tampering.concerns_foreign();
        }
    }

    /// After a failed round too: the kernel still serves what earlier rounds programmed.
    fn after(&mut self, round: &Round<'_, D>) {
        if !round.is_due(self.next_check()) {
            return;
        }
        self.last_check = Some(round.now);
        self.has_changed = false;
        let checked = self.chains.apply();
        self.is_unfinished =
            (checked.as_ref()).map_or(true, |it| it.waits || !it.failures.is_empty());
        self.log(&checked, round.now);
    }
}
