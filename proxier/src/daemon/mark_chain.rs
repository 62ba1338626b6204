//! The chain KUBE-MARK-MASQ for plugins (`--compat-chains`).

use std::time::Duration;

use tracing::Level;

use super::{Chore, Round};
use crate::dataplane::Dataplane;
use crate::host::{MarkChains, MarkReport};
use crate::sources::message::Message;
use crate::util::conditions::{Coverage, LastingConditions};

/// Maintains the chain in both families.
#[derive(Debug)]
pub(crate) struct MarkChainCheck {
    chains: MarkChains,
    /// Whether another program changed our packet rules since the last check.
    has_changed: bool,
    /// Failed writes, and tables that this program cannot write.
    conditions: LastingConditions,
    /// Our writes.
    events: LastingConditions,
}

impl MarkChainCheck {
    pub(crate) fn new(chains: MarkChains) -> Self {
        Self {
            chains,
            has_changed: false,
            conditions: LastingConditions::default(),
            events: LastingConditions::default(),
        }
    }

    /// Logs a check at `now`, in time since boot.
    fn log(&mut self, checked: &MarkReport, now: Duration) {
        let mut report = self.conditions.report(Coverage::All, now);
        for failure in &checked.failures {
            let text = format_args!("{failure}; plugins that use the chain fail; trying again");
            report.add(Level::WARN, "failures to write KUBE-MARK-MASQ", text);
        }
        for command in &checked.legacy_commands {
            let text = format_args!(
                "a table nat of iptables-legacy is in use; this program cannot write it. If plugins use \
                 its chain KUBE-MARK-MASQ, run `{command}`"
            );
            report.add(Level::WARN, "tables nat of iptables-legacy", text);
        }
        report.write();
        let mut events = self.events.report(Coverage::Events, now);
        for chain in &checked.written {
            let text = format_args!("wrote {chain}");
            events.add(Level::INFO, "writes of KUBE-MARK-MASQ", text);
        }
        events.write();
    }
}

impl<D: Dataplane> Chore<D> for MarkChainCheck {
    /// Notifications about the chain itself are not read. But a program that flushes all rules (`nft flush
    /// ruleset`) changes our table too.
    fn receive(&mut self, message: &Message) {
        if let Message::RulesChanged(tampering) = message {
            self.has_changed |= tampering.concerns_our_table();
        }
    }

    fn after(&mut self, round: &Round<'_, D>) {
        if std::mem::take(&mut self.has_changed) || round.is_due(None) {
            let checked = self.chains.apply();
            self.log(&checked, round.now);
        }
    }
}
