//! The times at which the forward chains of other programs are checked.

use std::time::Duration;

use super::log::RoundLog;
use crate::nftables::Forwarding;

/// The shortest time between two checks. Without it, a program that flushes a chain again and again
/// would cause a check each time.
const PAUSE: Duration = Duration::from_secs(1);

/// The time from a check with failures to the next check.
const RETRY: Duration = Duration::from_secs(5);

/// Checks the forward chains at every resync, after a notification that one changed, and again after
/// a failure.
#[derive(Debug)]
pub(super) struct Forward {
    forwarding: Forwarding,
    last_check: Option<Duration>,
    has_changed: bool,
    has_failed: bool,
}

impl Forward {
    pub(super) fn new(forwarding: Forwarding) -> Self {
        Self {
            forwarding,
            last_check: None,
            has_changed: false,
            has_failed: false,
        }
    }

    /// Requests a check because a forward chain changed.
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
        let report = self.forwarding.apply();
        self.has_failed = (report.as_ref()).map_or(true, |report| !report.failures.is_empty());
        log.forwarding(report, now);
    }
}
