//! When chains of others at the forward hook are looked at.

use std::time::Duration;

use super::journal::Journal;
use crate::nftables::Forwarding;

/// No two looks are closer: whoever fights for a chain must not keep us busy.
const PAUSE: Duration = Duration::from_secs(1);

/// Sees to forward chains of others at every full resync, and soon after one has changed.
#[derive(Debug)]
pub(super) struct Forward {
    forwarding: Forwarding,
    last: Option<Duration>,
    has_changed: bool,
}

impl Forward {
    pub(super) fn new(forwarding: Forwarding) -> Self {
        Self {
            forwarding,
            last: None,
            has_changed: false,
        }
    }

    /// A chain is not what it was.
    pub(super) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// When to look before the next resync, in time since boot.
    pub(super) fn due(&self) -> Option<Duration> {
        let soon = self.last.map_or(Duration::ZERO, |last| last + PAUSE);
        self.has_changed.then_some(soon)
    }

    /// Looks at `now`, in time since boot.
    pub(super) fn see_to(&mut self, now: Duration, journal: &mut Journal) {
        self.last = Some(now);
        self.has_changed = false;
        journal.forwarding(self.forwarding.see_to());
    }
}
