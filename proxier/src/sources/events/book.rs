//! Decides which Event is written, and when. Memory and the rate of requests are bounded, and one
//! notice has one Event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Notice, Occurrence};
use net::stable_hash::{fnv1a, mix};

/// When Events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTimes {
    /// The longest delay before the first request for a notice that all nodes have. The delay depends on node and notice,
    /// so that one node creates the common Event before most others look for it.
    pub spread: Duration,
    /// From the creation of an Event to its first count, twice this to the second, and three times this to each later one;
    /// also before a failed request is tried again.
    pub period: Duration,
    /// How long the Event of another node is trusted to last. The API server deletes Events after an hour. The time
    /// doubles with each look that finds the Event, up to 16 times this.
    pub other_period: Duration,
    /// The pause between two requests, after the first 20.
    pub interval: Duration,
    /// After a refusal (403 or 404), no request is sent for this long.
    pub pause: Duration,
}

impl Default for EventTimes {
    fn default() -> Self {
        Self {
            // 5,000 nodes are 17 requests a second, and an Event arrives after 2.5 minutes in a cluster of one node.
            spread: Duration::from_secs(5 * 60),
            // Each count extends the life of the Event by an hour.
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
    /// The name of this node.
    node_name: String,
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
    /// How often the Event of another process was found in a row.
    found: u32,
    is_present: bool,
    /// When the next request is due; `None` after that of a notice that is reported once.
    due: Option<Duration>,
    /// Whether the last request failed.
    has_failed: bool,
}

impl EventBook {
    /// The maximum number of remembered notices. Further new notices are not reported.
    pub(crate) const MAX_NOTICES: usize = 500;

    /// The maximum number of remembered notices of the objects of one namespace, and of those of the Node. Without it, the
    /// mistakes of one tenant would keep out those of all others.
    pub(crate) const MAX_OF_NAMESPACE: usize = 25;

    /// The number of periods between two counts of an Event that lasts. With the default times, it is 45 minutes.
    const MAX_PERIODS: u32 = 3;

    /// How often the time doubles for which the Event of another node is trusted to last.
    const MAX_DOUBLINGS: u32 = 4;

    /// The number of requests that may follow each other without a pause.
    pub(crate) const BURST: u32 = 20;

    /// Returns an empty book of the node `node_name`.
    pub(crate) fn new(times: EventTimes, node_name: &str) -> Self {
        Self {
            times,
            node_name: node_name.to_owned(),
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
        let present: BTreeSet<&Notice> = present.iter().collect();
        // After that time, the Event of an absent notice needs no memory. A notice without a time was
        // reported once and stays, so that it is not reported again.
        self.entries.retain(|notice, entry| {
            entry.is_present = present.contains(notice);
            entry.is_present || entry.due.is_none_or(|due| due > now)
        });
        for notice in self.admitted(&present) {
            let entry = BookEntry {
                count: None,
                found: 0,
                is_present: true,
                due: Some(now + self.delay(&notice)),
                has_failed: false,
            };
            self.entries.insert(notice, entry);
        }
    }

    /// Returns the new notices for which there is room.
    fn admitted(&self, present: &BTreeSet<&Notice>) -> Vec<Notice> {
        let mut shares = BTreeMap::<Option<&str>, usize>::new();
        for notice in self.entries.keys() {
            *shares.entry(notice.namespace()).or_default() += 1;
        }
        let mut admitted = Vec::new();
        let is_new = |notice: &&Notice| !self.entries.contains_key(*notice);
        for notice in present.iter().copied().filter(is_new) {
            let is_full = self.entries.len() + admitted.len() >= Self::MAX_NOTICES;
            let share = shares.entry(notice.namespace()).or_default();
            // The Node's share is always free: nothing else reports its failures.
            if *share < Self::MAX_OF_NAMESPACE && (!is_full || notice.namespace().is_none()) {
                *share += 1;
                admitted.push(notice.clone());
            }
        }
        admitted
    }

    /// Returns the delay before the first request for a notice: a part of the spread that depends on node and notice.
    fn delay(&self, notice: &Notice) -> Duration {
        if !notice.is_common() {
            return Duration::ZERO;
        }
        let (namespace, name) = notice.event_name(&self.node_name);
        let text = format!("{}\0{namespace}\0{name}", self.node_name);
        // The upper 32 bits are a fraction of one.
        let fraction = u32::try_from(mix(fnv1a(text.bytes())) >> 32).unwrap_or_default();
        self.times
            .spread
            .mul_f64(f64::from(fraction) / f64::from(u32::MAX))
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
            Occurrence::Lasting => {
                let periods = entry.count.map_or(1, |count| count.saturating_add(1));
                Some(now + self.times.period * periods.min(Self::MAX_PERIODS))
            }
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
            entry.found = 0;
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
            let pause = self.times.other_period * (1 << entry.found.min(Self::MAX_DOUBLINGS));
            entry.found = entry.found.saturating_add(1);
            // `None` stays, because the notice is reported once.
            entry.due = entry.due.map(|_| now + pause);
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
    use crate::cluster::problem::Problem;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn notice(note: &str) -> Notice {
        Notice::node("A", "B", note)
    }

    /// Returns a notice that all nodes have.
    fn common(object: &str) -> Notice {
        Notice::problem(&Problem::new(object, "spec", "x", "is wrong"))
    }

    const TIMES: EventTimes = EventTimes {
        spread: secs(300),
        period: secs(100),
        other_period: secs(1_000),
        interval: secs(1),
        pause: secs(500),
    };

    fn book() -> EventBook {
        EventBook::new(TIMES, "us")
    }

    #[test]
    fn a_lasting_notice_is_one_event_with_a_growing_count() {
        let (mut book, one) = (book(), notice("x"));
        for now in 0..1_000 {
            book.set(std::slice::from_ref(&one), secs(now));
            let expected = match now {
                0 => Some(Task::Create(one.clone())),
                100 => Some(Task::Count(one.clone(), 2)),
                300 => Some(Task::Count(one.clone(), 3)),
                600 => Some(Task::Count(one.clone(), 4)),
                900 => Some(Task::Count(one.clone(), 5)),
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
        let mut now = 0;
        for pause in [1, 2, 4, 8, 16, 16] {
            now += pause * 1_000;
            assert_eq!(book.next_due(), Some(secs(now)));
            assert_eq!(book.take(secs(now)), Some(Task::Create(one.clone())));
            book.exists(&one, secs(now));
        }
    }

    #[test]
    fn one_node_of_many_creates_the_event_of_a_common_notice() {
        for object in ["Service a/web", "EndpointSlice b/web-1", "Service c/api"] {
            let notice = common(object);
            let mut dues: Vec<Duration> = (0..5_000)
                .map(|node| {
                    let mut book = EventBook::new(TIMES, &format!("node-{node}"));
                    book.set(std::slice::from_ref(&notice), secs(7));
                    book.next_due().unwrap() - secs(7)
                })
                .collect();
            dues.sort();
            // Those that look before the first request is answered, and the time of the first and the last.
            let answered = dues[0] + Duration::from_millis(100);
            let early = dues.iter().filter(|&&due| due < answered).count();
            assert!(early <= 6, "{object}: {early} nodes");
            assert!(dues[0] < secs(1) && dues[4_999] <= secs(300), "{object}");
            // Nor do many look in the same second: on average, 17 do.
            let busiest = (0..300).map(|second| {
                let is_then = |due: &&Duration| due.as_secs() == second;
                dues.iter().filter(is_then).count()
            });
            assert!(busiest.max().unwrap() < 40, "{object}");
        }
    }

    #[test]
    fn a_common_notice_that_is_over_soon_causes_no_request() {
        let mut book = book();
        for now in 0..1_000 {
            // A tenant edits a wrong value each second.
            book.set(&[common(&format!("Service a/web-{now}"))], secs(now));
            assert_eq!(book.take(secs(now)), None);
        }
    }

    #[test]
    fn one_namespace_does_not_keep_the_others_out() {
        let many = |namespace: &str| -> Vec<Notice> {
            let names = (0..600).map(|n| common(&format!("Service {namespace}/web-{n}")));
            names.collect()
        };
        let mut book = book();
        let (first, second) = (many("a"), many("b"));
        let node = [notice("x"), notice("y")];
        let all = [&first[..], &second[..], &node[..]].concat();
        for now in 0..2_000 {
            book.set(&all, secs(now));
            while let Some(task) = book.take(secs(now)) {
                let (Task::Create(notice) | Task::Count(notice, _)) = task;
                book.exists(&notice, secs(now));
            }
        }
        let of = |namespace| {
            let notices = book.entries.keys();
            let of_namespace = notices.filter(|notice| notice.namespace() == namespace);
            of_namespace.count()
        };
        let most = EventBook::MAX_OF_NAMESPACE;
        assert_eq!((of(Some("a")), of(Some("b")), of(None)), (most, most, 2));
        // A new failure of the Node is remembered although the book is full.
        let full: Vec<Notice> = (0..30).flat_map(|n| many(&n.to_string())).collect();
        book.set(&full, secs(30_000));
        assert_eq!(book.entries.len(), EventBook::MAX_NOTICES);
        book.set(&[&full[..], &node[..]].concat(), secs(30_000));
        assert!(node.iter().all(|notice| book.entries.contains_key(notice)));
    }

    #[test]
    fn known_notices_cause_hardly_any_request() {
        // A day of a node with all mistakes that it remembers, which other nodes have reported.
        let mut book = EventBook::new(EventTimes::default(), "us");
        let names = (0..500).map(|n| common(&format!("Service {}/web", n % 20 * 1_000 + n)));
        let all: Vec<Notice> = names.collect();
        let mut tasks = 0;
        book.set(&all, secs(0));
        for now in (0..86_400).step_by(10) {
            while let Some(task) = book.take(secs(now)) {
                let (Task::Create(notice) | Task::Count(notice, _)) = task;
                book.exists(&notice, secs(now));
                tasks += 1;
            }
        }
        assert!(tasks <= 5 * 500, "{tasks}");
    }

    #[test]
    fn memory_and_rate_are_bounded() {
        let mut book = book();
        let many: Vec<Notice> = (0..2_000)
            .map(|n| common(&format!("Service {n}/web")))
            .collect();
        book.set(&many, secs(0));
        assert_eq!(book.entries.len(), EventBook::MAX_NOTICES);
        let mut tasks = 0;
        for now in 300..360 {
            while book.take(secs(now)).is_some() {
                tasks += 1;
            }
        }
        assert_eq!(tasks, EventBook::BURST + 59);
        // Absent notices are forgotten after a period.
        book.set(&[], secs(500));
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
