//! Log lines about conditions that last, and about events that recur.
//!
//! A condition of 10,000 objects that lasts for a day must not cost 10,000 lines, nor a line every
//! 30 s. So conditions are grouped by kind, and a kind gets:
//!
//! * at its beginning, one line with its objects, or with their number and some of them;
//! * for new objects, further lines of this form, a few in each interval;
//! * while it lasts, one line after a minute, then after 2, 4, .. minutes, at most hourly;
//! * at its end, one line.
//!
//! Events have no end. At the same intervals, one line has the number of events without a line. Level
//! `debug` shows every object each time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tracing::Level;

/// The maximum number of lines about new objects of a kind in an interval.
const MAX_LINES: usize = 5;

/// The maximum number of objects that one line names.
const SAMPLES: usize = 3;

/// The maximum number of characters of an object in a line, so that hostile input cannot fill the memory.
const MAX_TEXT: usize = 500;

/// The maximum number of objects of a kind that are distinguished. Further ones are only counted.
const MAX_OBJECTS: usize = 4_096;

/// The maximum number of kinds. Objects of further kinds count as [`OTHERS`].
const MAX_KINDS: usize = 64;

const OTHERS: &str = "failures of other kinds";

/// The time from the beginning of a condition to its first summary.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The longest time between two summaries.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// How much a [`ConditionReport`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// The report has every present object. A kind without an object has ended.
    All,
    /// Objects that the report lacks may be present.
    Part,
    /// The objects are events, which do not last. Equal events share a line until the next summary.
    Events,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    level: Level,
    text: String,
}

impl Line {
    fn new(level: Level, text: String) -> Self {
        Self { level, text }
    }

    fn write(&self) {
        let text = &self.text;
        match self.level {
            Level::ERROR => tracing::error!("{text}"),
            Level::WARN => tracing::warn!("{text}"),
            _ => tracing::info!("{text}"),
        }
    }
}

/// The conditions of one source. A report with [`Coverage::All`] ends the conditions that it lacks.
///
/// Memory is bounded: [`MAX_KINDS`] kinds of [`MAX_OBJECTS`] hashes each.
#[derive(Debug, Default)]
pub(crate) struct LastingConditions {
    kinds: BTreeMap<Box<str>, Lasting>,
}

impl LastingConditions {
    /// Begins a report at `now`, in time since boot.
    pub(crate) fn report(&mut self, coverage: Coverage, now: Duration) -> ConditionReport<'_> {
        let mut lines = Vec::new();
        if coverage == Coverage::Events {
            // Before the new events, so that one after a quiet interval gets a line of its own.
            self.kinds.retain(|kind, lasting| {
                now < lasting.due || lasting.sum_up_events(kind, now, &mut lines)
            });
        }
        ConditionReport {
            conditions: self,
            coverage,
            now,
            lines,
        }
    }

    /// Logs an event or a part of a condition with one object, whose kind is `kind`.
    pub(crate) fn add(
        &mut self,
        coverage: Coverage,
        level: Level,
        kind: &str,
        object: impl Display,
        now: Duration,
    ) {
        let mut report = self.report(coverage, now);
        report.add(level, kind, object);
        report.write();
    }

    /// Returns whether a condition began and did not end.
    #[cfg(test)]
    pub(crate) fn is_lasting(&self) -> bool {
        self.kinds.values().any(|lasting| lasting.objects.count > 0)
    }

    /// Logs the end of all conditions.
    pub(crate) fn end(&mut self, now: Duration) {
        if !self.kinds.is_empty() {
            self.report(Coverage::All, now).write();
        }
    }
}

/// The present objects of a source, or its events, at one time.
#[derive(Debug)]
#[must_use = "only `write` logs it"]
pub(crate) struct ConditionReport<'a> {
    conditions: &'a mut LastingConditions,
    coverage: Coverage,
    now: Duration,
    lines: Vec<Line>,
}

impl ConditionReport<'_> {
    /// Adds an object of a kind. `kind` continues the sentence "20 ..": `failures to add addresses`.
    pub(crate) fn add(&mut self, level: Level, kind: &str, object: impl Display) {
        let object = object.to_string();
        tracing::debug!("{object}");
        let kinds = &mut self.conditions.kinds;
        let is_full = kinds.len() >= MAX_KINDS && !kinds.contains_key(kind);
        let kind = if is_full { OTHERS } else { kind };
        if !kinds.contains_key(kind) {
            kinds.insert(kind.into(), Lasting::new(level, self.now));
        }
        if let Some(lasting) = kinds.get_mut(kind) {
            lasting.add(object);
        }
    }

    /// Writes the lines that are due.
    pub(crate) fn write(self) {
        self.lines().iter().for_each(Line::write);
    }

    fn lines(self) -> Vec<Line> {
        let Self {
            conditions,
            coverage,
            now,
            mut lines,
        } = self;
        conditions.kinds.retain(|kind, lasting| {
            lasting.settle(kind, coverage, now, &mut lines);
            !lasting.is_forgettable(now)
        });
        lines
    }
}

/// A condition, or events, of one kind.
#[derive(Debug)]
struct Lasting {
    level: Level,
    /// When it began; for events the time of the last summary.
    since: Duration,
    /// The present objects; none after the end. For events those since the last summary, without the number of those
    /// that a line named.
    objects: Group,
    /// The objects since the last report.
    seen: Group,
    /// The new objects that no line has named.
    fresh: Group,
    /// Whether a line said that it began.
    is_said: bool,
    /// The number of lines about new objects that may be written before `due`.
    budget: usize,
    /// When the next summary is due, and the time until the one after it.
    due: Duration,
    pause: Duration,
}

impl Lasting {
    fn new(level: Level, now: Duration) -> Self {
        Self {
            level,
            since: now,
            objects: Group::default(),
            seen: Group::default(),
            fresh: Group::default(),
            is_said: false,
            budget: MAX_LINES,
            due: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
        }
    }

    fn add(&mut self, object: String) {
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        let (hash, text) = (hasher.finish(), shorten(object));
        if !self.objects.may_have(hash) && !self.seen.may_have(hash) {
            self.fresh.add(hash, &text);
        }
        self.seen.add(hash, &text);
    }

    /// Appends the lines that are due at the end of a report.
    fn settle(&mut self, kind: &str, coverage: Coverage, now: Duration, lines: &mut Vec<Line>) {
        let seen = std::mem::take(&mut self.seen);
        if coverage == Coverage::All && seen.count == 0 {
            return self.end(kind, now, lines);
        }
        if coverage != Coverage::Events && self.objects.count == 0 {
            self.since = now;
        }
        self.objects.learn(coverage, seen);
        if coverage != Coverage::Events && self.objects.count > 0 && now >= self.due {
            if self.is_said {
                let took = duration(now.saturating_sub(self.since));
                let text = format!("still, after {took}: {}", self.objects.text(kind));
                lines.push(Line::new(self.level, text));
                self.fresh = Group::default();
            }
            self.begin_interval(now);
        }
        if self.fresh.count == 0 || self.budget == 0 {
            return;
        }
        let fresh = std::mem::take(&mut self.fresh);
        let text = if coverage == Coverage::Events {
            self.objects.count -= fresh.count;
            fresh.text(kind)
        } else if self.is_said {
            fresh.text(kind)
        } else {
            self.objects.text(kind)
        };
        lines.push(Line::new(self.level, text));
        self.is_said = true;
        self.budget -= 1;
    }

    /// Ends the condition. Budget and intervals stay, so that one that begins and ends again and again does not get new
    /// lines each time.
    fn end(&mut self, kind: &str, now: Duration, lines: &mut Vec<Line>) {
        if std::mem::take(&mut self.is_said) {
            let took = duration(now.saturating_sub(self.since));
            let text = format!("over after {took}: {}", self.objects.text(kind));
            lines.push(Line::new(Level::INFO, text));
        }
        self.objects = Group::default();
        self.fresh = Group::default();
    }

    /// Appends a line about the events that no line has named. Returns `false` if there are none.
    fn sum_up_events(&mut self, kind: &str, now: Duration, lines: &mut Vec<Line>) -> bool {
        let further = self.objects.count;
        if further > 0 {
            let unnamed = [&self.fresh, &self.objects];
            let examples = unnamed.into_iter().find(|group| group.count > 0);
            let examples = examples.map(Group::examples).unwrap_or_default();
            let took = duration(now.saturating_sub(self.since));
            let text = format!("{further} more {kind} in {took}; for example: {examples}");
            lines.push(Line::new(self.level, text));
        }
        self.objects = Group::default();
        self.fresh = Group::default();
        self.since = now;
        self.begin_interval(now);
        further > 0
    }

    /// Sets the time of the next summary, and permits further lines until then.
    fn begin_interval(&mut self, now: Duration) {
        self.budget = MAX_LINES;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.due = now + self.pause;
    }

    /// Returns whether it ended so long ago that a recurrence is a new condition.
    fn is_forgettable(&self, now: Duration) -> bool {
        self.objects.count == 0 && now >= self.due + self.pause
    }
}

/// Objects of one kind.
#[derive(Debug, Default)]
struct Group {
    count: usize,
    /// The hashes of the first [`MAX_OBJECTS`].
    hashes: BTreeSet<u64>,
    /// The first [`SAMPLES`] of the last report.
    samples: Vec<String>,
}

impl Group {
    fn add(&mut self, hash: u64, text: &str) {
        self.count += 1;
        if self.hashes.len() < MAX_OBJECTS {
            self.hashes.insert(hash);
        }
        if self.samples.len() < SAMPLES {
            self.samples.push(text.to_owned());
        }
    }

    /// Returns whether the group has an object, or too many to know.
    fn may_have(&self, hash: u64) -> bool {
        self.hashes.len() >= MAX_OBJECTS || self.hashes.contains(&hash)
    }

    /// Takes over the objects of a report.
    fn learn(&mut self, coverage: Coverage, seen: Self) {
        if coverage == Coverage::All {
            *self = seen;
        } else if seen.count > 0 {
            let room = MAX_OBJECTS - self.hashes.len();
            self.hashes.extend(seen.hashes.into_iter().take(room));
            self.samples = seen.samples;
            self.count = match coverage {
                Coverage::Events => self.count + seen.count,
                _ => self.count.max(seen.count).max(self.hashes.len()),
            };
        }
    }

    fn examples(&self) -> String {
        self.samples.join("; ")
    }

    /// Returns the object, if there is only one; otherwise their number and some of them.
    fn text(&self, kind: &str) -> String {
        match (self.count, self.examples()) {
            (1, only) => only,
            (count, some) => format!("{count} {kind}; for example: {some}"),
        }
    }
}

fn shorten(text: String) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        None => text,
        Some((cut, _)) => format!("{}...", &text[..cut]),
    }
}

fn duration(time: Duration) -> impl Display {
    humantime::format_duration(Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests;
