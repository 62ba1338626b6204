//! Timers whose pause doubles.

use std::time::Duration;

/// The time at which something is due, with a pause that doubles at each [`Timer::back_off`].
///
/// All times are durations since boot. The caller passes the present time in, so that tests need not
/// wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timer {
    due: Option<Duration>,
    /// The pause that [`Timer::back_off`] uses next.
    pause: Duration,
    first: Duration,
    longest: Duration,
}

impl Timer {
    /// Returns a timer for failed requests: 1 s, doubled up to 30 s. It is not set.
    pub(crate) fn retry() -> Self {
        Self::doubling(Duration::from_secs(1), Duration::from_secs(30))
    }

    /// Returns a timer whose pauses double from `first` to `longest`. It is not set.
    pub(crate) fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            due: None,
            pause: first,
            first,
            longest,
        }
    }

    /// Sets the timer one pause after `now` and doubles the pause.
    pub(crate) fn back_off(&mut self, now: Duration) {
        self.due = Some(now + self.pause);
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Sets the timer to `at`, unless it is due earlier.
    pub(crate) fn no_later_than(&mut self, at: Duration) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Clears the timer. The next pause keeps its length.
    pub(crate) fn clear(&mut self) {
        self.due = None;
    }

    /// Clears the timer. The next pause is the shortest.
    pub(crate) fn reset(&mut self) {
        *self = Self::doubling(self.first, self.longest);
    }

    /// Returns when it is due; `None` while it is not set.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Returns whether it is set and due.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Returns whether it is set and not yet due.
    pub(crate) fn is_waiting(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut timer = Timer::retry();
        assert_eq!(timer.due(), None);
        let mut now = seconds(100);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            timer.back_off(now);
            let due = timer.due().unwrap();
            assert!(timer.is_waiting(now) && timer.is_due(due));
            pauses.push((due - now).as_secs());
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        timer.clear();
        assert_eq!(timer.due(), None);
        timer.back_off(now);
        assert_eq!(timer.due(), Some(now + seconds(30)));
        timer.reset();
        timer.back_off(now);
        assert_eq!(timer.due(), Some(now + seconds(1)));
    }

    #[test]
    fn an_earlier_time_replaces_a_later_one() {
        let mut timer = Timer::retry();
        for (at, due) in [(9, 9), (12, 9), (4, 4)] {
            timer.no_later_than(seconds(at));
            assert_eq!(timer.due(), Some(seconds(due)));
        }
    }
}
