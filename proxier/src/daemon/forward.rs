//! When chains of others at the forward hook are looked at.

use std::time::Duration;

use super::journal::Journal;
use crate::nftables::Forwarding;

/// No two looks are closer: whoever fights for a chain must not keep us busy.
const PAUSE: Duration = Duration::from_secs(1);

/// After a look that went wrong somewhere comes the next one so soon.
const RETRY: Duration = Duration::from_secs(5);

/// Sees to forward chains of others at every full resync, soon after one has changed, and again when
/// it could not.
#[derive(Debug)]
pub(super) struct Forward {
    forwarding: Forwarding,
    last: Option<Duration>,
    has_changed: bool,
    has_failed: bool,
}

impl Forward {
    pub(super) fn new(forwarding: Forwarding) -> Self {
        Self {
            forwarding,
            last: None,
            has_changed: false,
            has_failed: false,
        }
    }

    /// A chain is not what it was.
    pub(super) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// When to look before the next resync, in time since boot.
    pub(super) fn due(&self) -> Option<Duration> {
        let after = |pause| self.last.map_or(Duration::ZERO, |last| last + pause);
        match (self.has_changed, self.has_failed) {
            (true, _) => Some(after(PAUSE)),
            (false, true) => Some(after(RETRY)),
            (false, false) => None,
        }
    }

    /// Looks at `now`, in time since boot.
    pub(super) fn see_to(&mut self, now: Duration, journal: &mut Journal) {
        self.last = Some(now);
        self.has_changed = false;
        let seen = self.forwarding.see_to();
        self.has_failed = (seen.as_ref()).map_or(true, |seen| !seen.failures.is_empty());
        journal.forwarding(seen, now);
    }
}
