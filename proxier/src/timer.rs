//! When something is due next, and how that moves further away while it fails.

use std::time::Duration;

/// A moment at which something is due, in time since boot, with a pause that doubles.
///
/// Every wait of the daemon's thread is one of these, so that "when is the next round due" is a
/// minimum over timers. Time is passed in: tests move it by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    due: Option<Duration>,
    pause: Duration,
    first: Duration,
    longest: Duration,
}

impl Timer {
    /// A timer that is not set, for something that was refused: 1 s, doubled up to 30 s.
    pub fn retry() -> Self {
        Self::doubling(Duration::from_secs(1), Duration::from_secs(30))
    }

    /// A timer that is not set, whose pauses double from `first` to `longest`.
    pub fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            due: None,
            pause: first,
            first,
            longest,
        }
    }

    /// Sets the timer one pause after `now` and doubles the pause.
    pub fn back_off(&mut self, now: Duration) {
        self.due = Some(now + self.pause);
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Sets the timer to `at`, unless it is due sooner.
    pub fn no_later_than(&mut self, at: Duration) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Clears the timer; the next pause is as long as it would have been.
    pub fn clear(&mut self) {
        self.due = None;
    }

    /// Clears the timer and starts over with the shortest pause.
    pub fn reset(&mut self) {
        *self = Self::doubling(self.first, self.longest);
    }

    /// When it is due; `None` while it is not set.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Whether it is set and due.
    pub fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Whether it is set and not yet due.
    pub fn is_waiting(&self, now: Duration) -> bool {
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
    fn an_earlier_moment_wins() {
        let mut timer = Timer::retry();
        for (at, due) in [(9, 9), (12, 9), (4, 4)] {
            timer.no_later_than(seconds(at));
            assert_eq!(timer.due(), Some(seconds(due)));
        }
    }
}
