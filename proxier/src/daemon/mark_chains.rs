//! The chain KUBE-MARK-MASQ for plugins (`--compat-chains`).

use std::collections::BTreeSet;

use crate::nftables::MarkChains;

/// Maintains the chain, and logs each lasting failure once.
#[derive(Debug)]
pub(super) struct MarkChainCheck {
    chains: MarkChains,
    /// The failures that were logged.
    failures: BTreeSet<String>,
    /// The commands for iptables-legacy that were logged.
    legacy_commands: BTreeSet<String>,
}

impl MarkChainCheck {
    pub(super) fn new(chains: MarkChains) -> Self {
        Self {
            chains,
            failures: BTreeSet::new(),
            legacy_commands: BTreeSet::new(),
        }
    }

    /// Checks the chain in both families.
    pub(super) fn apply(&mut self) {
        let report = self.chains.apply();
        for chain in &report.written {
            tracing::info!("wrote {chain}");
        }
        for failure in report.failures.difference(&self.failures) {
            tracing::warn!("{failure}; plugins that use the chain fail; trying again");
        }
        for command in report.legacy_commands.difference(&self.legacy_commands) {
            tracing::warn!(
                "a table nat of iptables-legacy is in use; this program cannot write it. If plugins use \
                 its chain KUBE-MARK-MASQ, run `{command}`"
            );
        }
        self.failures = report.failures;
        self.legacy_commands = report.legacy_commands;
    }
}
