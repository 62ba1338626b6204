//! Waiting times between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Exponential backoff with jitter: client-go's 0.8 s to 30 s.
///
/// The jitter keeps the nodes of a cluster from reconnecting at the same moment.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const LONGEST: Duration = Duration::from_secs(30);
    /// The shortest time without failure after which the backoff is reset.
    const CALM: Duration = Duration::from_secs(10);
    /// Upper limit of a server's `Retry-After`.
    const LONGEST_ASKED: Duration = Duration::from_secs(120);

    /// Returns a backoff at its shortest wait.
    pub(super) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// Returns the wait before the next attempt and doubles the one after that.
    ///
    /// `calm` is the time since the last wait ended, and `asked` the server's `Retry-After`. The wait is
    /// random between half and all of the current limit. It is at least `asked`, but
    /// [`Self::LONGEST_ASKED`] limits `asked`. If `calm` exceeds both the limit and [`Self::CALM`], the
    /// limit is reset first.
    pub(super) fn wait(&mut self, calm: Duration, asked: Option<Duration>) -> Duration {
        if calm > self.next.max(Self::CALM) {
            self.next = Self::FIRST;
        }
        let longest = self.next;
        self.next = (longest * 2).min(Self::LONGEST);
        match asked.map(|asked| asked.min(Self::LONGEST_ASKED)) {
            // A restarting server sends all nodes the same `Retry-After`, so it needs jitter, too.
            Some(asked) if asked >= longest / 2 => random_between(asked, asked + longest / 2),
            _ => random_between(longest / 2, longest),
        }
    }
}

/// Returns a random duration from `shortest` to `longest`.
pub(super) fn random_between(shortest: Duration, longest: Duration) -> Duration {
    // The hash keys are the standard library's only source of randomness, and good enough for jitter.
    let random = RandomState::new().hash_one(0);
    let steps = 1_000;
    let step = u32::try_from(random % u64::from(steps)).unwrap_or(0);
    shortest + longest.saturating_sub(shortest) * step / steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_limit_and_is_reset_after_success() {
        let mut backoff = Backoff::new();
        let mut longest = Backoff::FIRST;
        for _ in 0..20 {
            let wait = backoff.wait(Duration::ZERO, None);
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
            longest = (longest * 2).min(Backoff::LONGEST);
        }
        assert!(backoff.wait(Duration::from_secs(20), None) > 2 * Backoff::FIRST);
        assert!(backoff.wait(Duration::from_secs(31), None) <= Backoff::FIRST);
        let waits: std::collections::BTreeSet<_> = (0..20)
            .map(|_| random_between(Duration::ZERO, Backoff::LONGEST))
            .collect();
        assert!(waits.len() > 5, "{waits:?}");
    }

    #[test]
    fn retry_after_is_obeyed_up_to_a_limit() {
        let mut backoff = Backoff::new();
        let wait = backoff.wait(Duration::ZERO, Some(Duration::from_secs(7)));
        assert!((7..9).contains(&wait.as_secs()), "{wait:?}");
        let wait = backoff.wait(Duration::ZERO, Some(Duration::from_secs(86_400)));
        assert!(wait < Backoff::LONGEST_ASKED + Backoff::LONGEST, "{wait:?}");
    }
}
