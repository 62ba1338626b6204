//! The times at which failed changes are tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::util::timer::Timer;

/// The targets of failed changes, each with its own timer.
#[derive(Clone, Debug)]
pub(crate) struct Retries<T> {
    timers: BTreeMap<T, Timer>,
}

impl<T> Default for Retries<T> {
    fn default() -> Self {
        Self {
            timers: BTreeMap::new(),
        }
    }
}

impl<T: Copy + Ord> Retries<T> {
    /// Schedules another try of a target whose change failed at `now`.
    pub(crate) fn add(&mut self, target: T, now: Duration) {
        let timer = self.timers.entry(target).or_insert_with(Timer::retry);
        // Several changes of one round may fail at one target. They count as one failure.
        if timer.due().is_none() {
            timer.back_off(now);
        }
    }

    /// Returns the targets to try again at `now`, and clears their timers.
    ///
    /// At the end of the round, [`Retries::settle`] removes the targets that did not fail again.
    pub(crate) fn take_due(&mut self, now: Duration) -> BTreeSet<T> {
        let due = self.timers.iter_mut();
        let due = due.filter(|(_, timer)| timer.is_due(now));
        due.map(|(target, timer)| {
            timer.clear();
            *target
        })
        .collect()
    }

    /// Removes the targets that this round tried and that did not fail again.
    pub(crate) fn settle(&mut self) {
        self.timers.retain(|_, timer| timer.due().is_some());
    }

    /// Clears every timer, because a resync tries all targets. Pauses keep their length.
    pub(crate) fn try_all(&mut self) {
        self.timers.values_mut().for_each(Timer::clear);
    }

    /// Returns the targets whose changes fail.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &T> {
        self.timers.keys()
    }

    /// Returns when the next target is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.timers.values().filter_map(Timer::due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_waits_twice_as_long_after_every_failure_and_is_forgotten_after_success() {
        let mut retries = Retries::default();
        let mut now = Duration::ZERO;
        for pause in [1, 2, 4] {
            // Two failures of one round are one.
            retries.add('a', now);
            retries.add('a', now);
            retries.settle();
            let due = retries.next_due().unwrap();
            assert_eq!((due - now).as_secs(), pause);
            let early = retries.take_due(due - Duration::from_millis(1));
            assert_eq!(early, BTreeSet::new());
            now = due;
            assert_eq!(retries.take_due(now), ['a'].into());
        }
        retries.settle();
        assert_eq!(retries.next_due(), None);
        retries.add('a', now);
        assert_eq!(retries.next_due(), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn targets_have_timers_of_their_own() {
        let mut retries = Retries::default();
        retries.add('a', Duration::ZERO);
        retries.add('b', Duration::from_secs(9));
        assert_eq!(retries.take_due(Duration::from_secs(1)), ['a'].into());
        assert!(retries.targets().eq(&['a', 'b']));
    }
}
