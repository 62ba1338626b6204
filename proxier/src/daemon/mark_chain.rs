//! The chain KUBE-MARK-MASQ for plugins (`--compat-chains`).

use std::time::Duration;

use super::log::RoundLog;
use crate::host::MarkChains;

/// Maintains the chain.
#[derive(Debug)]
pub(super) struct MarkChainCheck(MarkChains);

impl MarkChainCheck {
    pub(super) fn new(chains: MarkChains) -> Self {
        Self(chains)
    }

    /// Checks the chain in both families at `now`.
    pub(super) fn apply(&mut self, now: Duration, log: &mut RoundLog) {
        log.mark_chains(&self.0.apply(), now);
    }
}
