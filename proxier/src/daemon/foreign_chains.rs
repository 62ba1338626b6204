//! The times at which foreign chains are checked.

use std::time::Duration;

use super::log::RoundLog;
use crate::host::ForeignChains;

/// The shortest time between two checks. Without it, a program that flushes a chain again and again
/// would cause a check each time.
const PAUSE: Duration = Duration::from_secs(1);

/// The time from a check with failures to the next check.
const RETRY: Duration = Duration::from_secs(5);

/// Checks the foreign chains at every resync, after a notification that one changed, and again after a
/// failure.
#[derive(Debug)]
pub(super) struct ChainCheck {
    chains: ForeignChains,
    last_check: Option<Duration>,
    has_changed: bool,
    has_failed: bool,
}

impl ChainCheck {
    pub(super) fn new(chains: ForeignChains) -> Self {
        Self {
            chains,
            last_check: None,
            has_changed: false,
            has_failed: false,
        }
    }

    /// Requests a check because a foreign chain changed.
    pub(super) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// Returns when a check is due before the next resync, in time since boot.
    pub(super) fn due(&self) -> Option<Duration> {
        let after = |pause| self.last_check.map_or(Duration::ZERO, |last| last + pause);
        match (self.has_changed, self.has_failed) {
            (true, _) => Some(after(PAUSE)),
            (false, true) => Some(after(RETRY)),
            (false, false) => None,
        }
    }

    /// Checks all chains at `now`, in time since boot.
    pub(super) fn apply(&mut self, now: Duration, log: &mut RoundLog) {
        self.last_check = Some(now);
        self.has_changed = false;
        let report = self.chains.apply();
        self.has_failed = (report.as_ref()).map_or(true, |report| !report.failures.is_empty());
        log.foreign_chains(&report, now);
    }
}
