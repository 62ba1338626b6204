//! How long to wait before the next attempt.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Waits that double, each shortened by chance so that the nodes of a cluster do not come back in
/// step: client-go's 0.8 s to 30 s.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const LONGEST: Duration = Duration::from_secs(30);
    /// How long all must go well at least before waits start over.
    const CALM: Duration = Duration::from_secs(10);
    /// The longest wait a server may ask for.
    const LONGEST_ASKED: Duration = Duration::from_secs(120);

    /// Starts at the shortest wait.
    pub(super) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// The wait before the next attempt, when the last one began `calm` ago: half of it certain,
    /// half of it by chance, and not less than the server `asked` for.
    ///
    /// Starts over when all went well for longer than the last two waits.
    pub(super) fn wait(&mut self, calm: Duration, asked: Option<Duration>) -> Duration {
        if calm > self.next.max(Self::CALM) {
            self.next = Self::FIRST;
        }
        let longest = self.next;
        self.next = (longest * 2).min(Self::LONGEST);
        match asked.map(|asked| asked.min(Self::LONGEST_ASKED)) {
            // Spread out what everybody was told alike.
            Some(asked) if asked >= longest / 2 => by_chance(asked, asked + longest / 2),
            _ => by_chance(longest / 2, longest),
        }
    }
}

/// A duration from `shortest` to `longest`, by chance.
pub(super) fn by_chance(shortest: Duration, longest: Duration) -> Duration {
    // Hash keys are the standard library's only source of randomness, and good enough to spread.
    let random = RandomState::new().hash_one(0);
    let steps = 1_000;
    let step = u32::try_from(random % u64::from(steps)).unwrap_or(0);
    shortest + longest.saturating_sub(shortest) * step / steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_a_limit_spreads_and_starts_over() {
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
            .map(|_| by_chance(Duration::ZERO, Backoff::LONGEST))
            .collect();
        assert!(waits.len() > 5, "{waits:?}");
    }

    #[test]
    fn a_server_may_ask_for_more_within_reason() {
        let mut backoff = Backoff::new();
        let wait = backoff.wait(Duration::ZERO, Some(Duration::from_secs(7)));
        assert!((7..9).contains(&wait.as_secs()), "{wait:?}");
        let wait = backoff.wait(Duration::ZERO, Some(Duration::from_secs(86_400)));
        assert!(wait < Backoff::LONGEST_ASKED + Backoff::LONGEST, "{wait:?}");
    }
}
