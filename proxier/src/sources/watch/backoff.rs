//! Waiting times between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The point at which an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The kernel of the server's host refused the connection, or no route leads to it.
    NoServer,
    /// A server may have spent work on it.
    Server,
}

/// The waits between attempts: random, and longer the longer the failures last.
///
/// | after a failure | limit of the wait | wait |
/// |---|---|---|
/// | the first | 0.8 s, as client-go's reflector | random, half of the limit to all of it |
/// | of a refused connection | a quarter of the time since the first failure | the same |
/// | of another kind | doubled, as client-go's | the same, at least `Retry-After` |
///
/// The limit never shrinks before the failures end, and is at most 30 s. A refused connection costs the
/// server nothing, so only the moment of its return counts: after an outage of 10 s, a node finds it
/// within 1 s on average, and all nodes spread their connections over a quarter of the outage.
/// client-go doubles the limit in both cases; then a node waits up to as long again as the server was gone.
#[derive(Debug)]
pub(super) struct Backoff {
    /// The limit of the last wait; zero without failures.
    limit: Duration,
    /// The time since the first failure.
    outage: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(800);
    const LONGEST: Duration = Duration::from_secs(30);
    /// Without a connection, the limit is the time since the first failure divided by this.
    const SHARE: u32 = 4;
    /// The shortest time without failure after which the backoff is reset.
    const CALM: Duration = Duration::from_secs(10);
    /// Upper limit of a server's `Retry-After`.
    const LONGEST_ASKED: Duration = Duration::from_secs(120);

    /// Returns a backoff before its first failure.
    pub(super) fn new() -> Self {
        Self {
            limit: Duration::ZERO,
            outage: Duration::ZERO,
        }
    }

    /// Returns the wait before the next attempt.
    ///
    /// `calm` is the time since the last wait ended, and `asked` the server's `Retry-After`. The wait is at
    /// least `asked`, but [`Self::LONGEST_ASKED`] limits `asked`. If `calm` exceeds both the limit and [`Self::CALM`], the
    /// failure is the first one.
    pub(super) fn wait(
        &mut self,
        reach: Reach,
        calm: Duration,
        asked: Option<Duration>,
    ) -> Duration {
        if calm > self.limit.max(Self::CALM) {
            *self = Self::new();
        }
        if self.limit > Duration::ZERO {
            self.outage += calm;
        }
        let grown = match reach {
            Reach::NoServer => self.outage / Self::SHARE,
            Reach::Server => self.limit * 2,
        };
        self.limit = grown.max(self.limit).clamp(Self::FIRST, Self::LONGEST);
        let wait = match asked.map(|asked| asked.min(Self::LONGEST_ASKED)) {
            // A restarting server sends all nodes the same `Retry-After`, so it needs jitter, too.
            Some(asked) if asked >= self.limit / 2 => random_between(asked, asked + self.limit / 2),
            _ => random_between(self.limit / 2, self.limit),
        };
        self.outage += wait;
        wait
    }
}

/// Returns a random duration from `shortest` to `longest`.
fn random_between(shortest: Duration, longest: Duration) -> Duration {
    // The hash keys are the standard library's only source of randomness, and good enough for jitter.
    let random = RandomState::new().hash_one(0);
    let steps = 1_000;
    let step = u32::try_from(random % u64::from(steps)).unwrap_or(0);
    shortest + longest.saturating_sub(shortest) * step / steps
}

/// Returns a random duration between `shortest` and twice that, so that the nodes of a cluster do not act at the same
/// moment.
pub(super) fn spread(shortest: Duration) -> Duration {
    random_between(shortest, 2 * shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of the attempts of one node, while no server accepts connections.
    fn attempts(until: Duration) -> Vec<Duration> {
        let mut backoff = Backoff::new();
        let mut now = Duration::ZERO;
        let mut attempts = Vec::new();
        while now < until {
            now += backoff.wait(Reach::NoServer, Duration::ZERO, None);
            attempts.push(now);
        }
        attempts
    }

    #[test]
    fn the_wait_doubles_up_to_a_limit_and_is_reset_after_success() {
        let mut backoff = Backoff::new();
        let mut longest = Backoff::FIRST;
        for _ in 0..20 {
            let wait = backoff.wait(Reach::Server, Duration::ZERO, None);
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?}");
            longest = (longest * 2).min(Backoff::LONGEST);
        }
        let calm = Duration::from_secs(20);
        assert!(backoff.wait(Reach::Server, calm, None) > 2 * Backoff::FIRST);
        let calm = Duration::from_secs(31);
        assert!(backoff.wait(Reach::Server, calm, None) <= Backoff::FIRST);
        let waits: std::collections::BTreeSet<_> = (0..20)
            .map(|_| random_between(Duration::ZERO, Backoff::LONGEST))
            .collect();
        assert!(waits.len() > 5, "{waits:?}");
    }

    #[test]
    fn a_server_that_returns_is_found_in_a_fraction_of_its_absence() {
        let nodes = 2_000;
        // The seconds without a server, and the most seconds until nodes find it: on average, and all.
        for (gone, mean, all) in [
            (1.0, 0.6, 0.8),
            (10.0, 1.1, 2.6),
            (60.0, 6.5, 16.0),
            (600.0, 13.0, 30.0),
        ] {
            let back = Duration::from_secs_f64(gone);
            let late: Vec<f64> = (0..nodes)
                .map(|_| {
                    attempts(back)
                        .last()
                        .map_or(0.0, |last| (*last - back).as_secs_f64())
                })
                .collect();
            let sum: f64 = late.iter().sum();
            assert!(
                sum / f64::from(nodes) < mean,
                "{gone}: {}",
                sum / f64::from(nodes)
            );
            assert!(late.iter().all(|&late| late <= all), "{gone}");
        }
    }

    #[test]
    fn nodes_do_not_connect_at_the_same_time() {
        // Of 5,000 nodes after an outage of 10 s: at most three times the mean rate of 2,000 per second
        // in a tenth of a second.
        let back = Duration::from_secs(10);
        let mut tenths = std::collections::BTreeMap::<u128, u32>::new();
        for _ in 0..5_000 {
            let late = attempts(back).last().copied().unwrap() - back;
            *tenths.entry(late.as_millis() / 100).or_default() += 1;
        }
        assert!(tenths.values().all(|&nodes| nodes < 600), "{tenths:?}");
        // A long outage costs a node few attempts: about 26 in the first two minutes, then 2 to 4 a minute.
        let minute = Duration::from_secs(60);
        let attempts = attempts(62 * minute);
        let until = |end| attempts.iter().filter(|&&at| at < end).count();
        assert!(until(2 * minute) < 45, "{}", until(2 * minute));
        assert!(attempts.len() - until(2 * minute) < 4 * 60 + 1);
    }

    #[test]
    fn a_busy_server_after_an_outage_gets_no_shorter_waits() {
        let mut backoff = Backoff::new();
        backoff.wait(Reach::NoServer, Duration::ZERO, None);
        // The time of an attempt belongs to the outage.
        backoff.wait(Reach::NoServer, Duration::from_secs(8), None);
        let limit = backoff.limit;
        assert!(limit >= Duration::from_secs(2), "{limit:?}");
        backoff.wait(Reach::Server, Duration::ZERO, None);
        assert_eq!(backoff.limit, limit * 2);
        backoff.wait(Reach::NoServer, Duration::ZERO, None);
        assert!(backoff.limit >= limit * 2);
    }

    #[test]
    fn retry_after_is_obeyed_up_to_a_limit() {
        let mut backoff = Backoff::new();
        let wait = backoff.wait(Reach::Server, Duration::ZERO, Some(Duration::from_secs(7)));
        assert!((7..9).contains(&wait.as_secs()), "{wait:?}");
        let asked = Some(Duration::from_secs(86_400));
        let wait = backoff.wait(Reach::Server, Duration::ZERO, asked);
        assert!(wait < Backoff::LONGEST_ASKED + Backoff::LONGEST, "{wait:?}");
    }
}
