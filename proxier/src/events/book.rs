//! Decides which Event is written, and when. Memory and the rate of requests are bounded, and one
//! notice has one Event.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Notice, Occurrence};

/// When Events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTimes {
    /// From one count of a lasting notice to the next; also before a failed request is tried again.
    pub period: Duration,
    /// How long the Event of another node is trusted to last. The API server deletes Events after an hour.
    pub other_period: Duration,
    /// The pause between two requests, after the first 20.
    pub interval: Duration,
    /// After a refusal (403 or 404), no request is sent for this long.
    pub pause: Duration,
}

impl Default for EventTimes {
    fn default() -> Self {
        Self {
            // Each count extends the life of the Event by an hour, so a few counts may fail before
            // the Event of a lasting notice disappears.
            period: Duration::from_secs(15 * 60),
            other_period: Duration::from_secs(65 * 60),
            interval: Duration::from_secs(10),
            pause: Duration::from_secs(60 * 60),
        }
    }
}

/// A request to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Create the Event of the notice.
    Create(Notice),
    /// Set the count of the Event of the notice.
    Count(Notice, u32),
}

/// The present and recent notices, and when each is reported.
#[derive(Clone, Debug)]
pub(crate) struct EventBook {
    times: EventTimes,
    entries: BTreeMap<Notice, BookEntry>,
    /// The time from which on the full number of requests may follow each other again.
    spent_until: Duration,
    /// No request before this time.
    paused_until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct BookEntry {
    /// The count of the Event that this process created; `None` before.
    count: Option<u32>,
    is_present: bool,
    /// When the next request is due; `None` after that of a notice that is reported once.
    due: Option<Duration>,
    /// Whether the last request failed.
    has_failed: bool,
}

impl EventBook {
    /// The maximum number of remembered notices. Further new notices are not reported.
    pub(crate) const MAX_NOTICES: usize = 500;

    /// The number of requests that may follow each other without a pause.
    pub(crate) const BURST: u32 = 20;

    /// Returns an empty book.
    pub(crate) fn new(times: EventTimes) -> Self {
        Self {
            times,
            entries: BTreeMap::new(),
            spent_until: Duration::ZERO,
            paused_until: Duration::ZERO,
        }
    }

    /// Replaces the present notices at `now`, in time since boot.
    ///
    /// A notice that returns keeps the time of its next report. So a notice that appears and disappears again
    /// and again is counted at most once in a period.
    pub(crate) fn set(&mut self, present: &[Notice], now: Duration) {
        for entry in self.entries.values_mut() {
            entry.is_present = false;
        }
        // After that time, the Event of an absent notice needs no memory. A notice without a time was
        // reported once and stays, so that it is not reported again.
        self.entries.retain(|notice, entry| {
            present.contains(notice) || entry.due.is_none_or(|due| due > now)
        });
        for notice in present {
            let is_full = self.entries.len() >= Self::MAX_NOTICES;
            match self.entries.get_mut(notice) {
                Some(entry) => entry.is_present = true,
                None if is_full => {}
                None => {
                    let entry = BookEntry {
                        count: None,
                        is_present: true,
                        due: Some(now),
                        has_failed: false,
                    };
                    self.entries.insert(notice.clone(), entry);
                }
            }
        }
    }

    /// Returns when [`EventBook::take`] next has a task; `None` if no notice waits for one.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let waiting = self.entries.values().filter(|entry| entry.is_present);
        let first = waiting.filter_map(|entry| entry.due).min()?;
        // A leaky bucket: `spent_until` is as far ahead of now as requests were sent too early.
        let burst = self.times.interval * (Self::BURST - 1);
        let rate = self.spent_until.saturating_sub(burst);
        Some(first.max(rate).max(self.paused_until))
    }

    /// Returns the next task that is due.
    pub(crate) fn take(&mut self, now: Duration) -> Option<Task> {
        if self.next_due()? > now {
            return None;
        }
        let waiting = self.entries.iter_mut();
        let waiting = waiting.filter(|(_, entry)| entry.is_present);
        let (notice, entry) = waiting
            .filter(|(_, entry)| entry.due.is_some_and(|due| due <= now))
            .min_by_key(|(_, entry)| entry.due)?;
        entry.due = match notice.occurrence {
            Occurrence::Lasting => Some(now + self.times.period),
            Occurrence::Once(_) => None,
        };
        entry.has_failed = false;
        self.spent_until = self.spent_until.max(now) + self.times.interval;
        Some(match entry.count {
            None => Task::Create(notice.clone()),
            Some(count) => Task::Count(notice.clone(), count.saturating_add(1)),
        })
    }

    /// Records that the Event has this count now.
    pub(crate) fn counted(&mut self, notice: &Notice, count: u32) {
        if let Some(entry) = self.entries.get_mut(notice) {
            entry.count = Some(count);
        }
    }

    /// Records that the request of a task failed at `now`. It is due again after a period.
    pub(crate) fn failed(&mut self, task: &Task, now: Duration) {
        let (Task::Create(notice) | Task::Count(notice, _)) = task;
        if let Some(entry) = self.entries.get_mut(notice) {
            entry.due = Some(now + self.times.period);
            entry.has_failed = true;
        }
    }

    /// Makes the requests due that failed, because the process ends at `now`.
    pub(crate) fn hasten(&mut self, now: Duration) {
        let failed = self.entries.values_mut().filter(|entry| entry.has_failed);
        failed.for_each(|entry| entry.due = Some(now));
    }

    /// Records that another process, usually of another node, created the Event.
    pub(crate) fn exists(&mut self, notice: &Notice, now: Duration) {
        if let Some(entry) = self.entries.get_mut(notice) {
            // `None` stays, because the notice is reported once.
            entry.due = entry.due.map(|_| now + self.times.other_period);
        }
    }

    /// Records that the API server no longer has the Event: the next report creates it.
    pub(crate) fn expired(&mut self, notice: &Notice, now: Duration) {
        if let Some(entry) = self.entries.get_mut(notice) {
            entry.count = None;
            entry.due = entry.due.map(|_| now);
        }
    }

    /// Records that the API server does not permit Events.
    pub(crate) fn refused(&mut self, now: Duration) {
        self.paused_until = now + self.times.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn notice(note: &str) -> Notice {
        Notice::node("A", "B", note)
    }

    fn book() -> EventBook {
        EventBook::new(EventTimes {
            period: secs(100),
            other_period: secs(1_000),
            interval: secs(1),
            pause: secs(500),
        })
    }

    #[test]
    fn a_lasting_notice_is_one_event_with_a_growing_count() {
        let (mut book, one) = (book(), notice("x"));
        for now in 0..350 {
            book.set(std::slice::from_ref(&one), secs(now));
            let expected = match now {
                0 => Some(Task::Create(one.clone())),
                100 => Some(Task::Count(one.clone(), 2)),
                200 => Some(Task::Count(one.clone(), 3)),
                300 => Some(Task::Count(one.clone(), 4)),
                _ => None,
            };
            let task = book.take(secs(now));
            assert_eq!(task, expected, "{now}");
            match task {
                Some(Task::Create(_)) => book.counted(&one, 1),
                Some(Task::Count(_, count)) => book.counted(&one, count),
                None => {}
            }
        }
    }

    #[test]
    fn a_notice_that_comes_and_goes_is_reported_once_in_a_period() {
        let (mut book, one) = (book(), notice("x"));
        let mut tasks = 0;
        for now in 0..200 {
            let present = if now % 2 == 0 {
                &[one.clone()][..]
            } else {
                &[]
            };
            book.set(present, secs(now));
            tasks += usize::from(book.take(secs(now)).is_some());
        }
        assert_eq!(tasks, 2);
    }

    #[test]
    fn an_event_of_another_node_is_left_alone_until_it_may_be_gone() {
        let (mut book, one) = (book(), notice("x"));
        book.set(std::slice::from_ref(&one), secs(0));
        assert!(book.take(secs(0)).is_some());
        book.exists(&one, secs(0));
        assert_eq!(book.next_due(), Some(secs(1_000)));
        assert_eq!(book.take(secs(1_000)), Some(Task::Create(one)));
    }

    #[test]
    fn memory_and_rate_are_bounded() {
        let mut book = book();
        let many: Vec<Notice> = (0..2_000).map(|n| notice(&n.to_string())).collect();
        book.set(&many, secs(0));
        let mut tasks = 0;
        for now in 0..60 {
            while book.take(secs(now)).is_some() {
                tasks += 1;
            }
        }
        assert_eq!(tasks, EventBook::BURST + 59);
        // Absent notices are forgotten after a period.
        book.set(&[], secs(200));
        assert_eq!((book.entries.len(), book.next_due()), (0, None));
    }

    #[test]
    fn a_failed_request_is_repeated_after_a_period_or_at_the_end() {
        let start = Notice::starting(std::time::SystemTime::UNIX_EPOCH);
        for notice in [notice("x"), start] {
            let mut book = book();
            book.set(std::slice::from_ref(&notice), secs(0));
            let create = Some(Task::Create(notice.clone()));
            for now in [0, 100] {
                assert_eq!(book.take(secs(now)), create);
                book.failed(&Task::Create(notice.clone()), secs(now));
                assert_eq!(book.take(secs(now + 99)), None);
            }
            book.hasten(secs(150));
            assert_eq!(book.take(secs(150)), create);
            book.counted(&notice, 1);
            book.hasten(secs(160));
            assert_eq!(book.take(secs(160)), None);
        }
    }

    #[test]
    fn a_refusal_stops_all_requests() {
        let mut book = book();
        book.set(&[notice("x"), notice("y")], secs(0));
        assert!(book.take(secs(0)).is_some());
        book.refused(secs(0));
        assert_eq!(book.take(secs(499)), None);
        assert_eq!(book.next_due(), Some(secs(500)));
        assert!(book.take(secs(500)).is_some());
    }

    #[test]
    fn a_start_is_reported_once() {
        let mut book = book();
        let start = Notice::starting(std::time::SystemTime::UNIX_EPOCH);
        for now in 0..1_000 {
            book.set(std::slice::from_ref(&start), secs(now));
            assert_eq!(book.take(secs(now)).is_some(), now == 0, "{now}");
        }
    }
}
