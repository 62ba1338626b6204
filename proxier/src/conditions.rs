//! Log lines about conditions that last, and about events that recur.
//!
//! A condition of 10,000 objects that lasts for a day must not cost 10,000 lines, nor a line every
//! 30 s. So conditions are grouped by kind:
//!
//! * At its beginning: a line for each object if there are few, otherwise one line with their number
//!   and some of them. New objects later get lines in the same way.
//! * While it lasts: one line after a minute, then after 2, 4, .. minutes, at most hourly.
//! * At its end: one line. If it begins again soon, the next line waits until the interval is over.
//!
//! Events have no end. At the same intervals, one line has the number of events without a line. Level
//! `debug` shows every object each time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tracing::Level;

/// The maximum number of lines of a kind between two summaries.
const HANDFUL: usize = 5;

/// The maximum number of objects that one line names.
const SAMPLES: usize = 3;

/// The maximum number of characters of an object in a line, so that hostile input cannot fill the memory.
const MAX_TEXT: usize = 500;

/// The maximum number of objects of a kind that are distinguished. If there are more, only their number is
/// logged.
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
        self.kinds.values().any(|lasting| lasting.ended.is_none())
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
        let kind = match kinds.contains_key(kind) || kinds.len() < MAX_KINDS {
            true => kind,
            false => OTHERS,
        };
        if !kinds.contains_key(kind) {
            kinds.insert(kind.into(), Lasting::new(level, self.now));
        }
        if let Some(lasting) = kinds.get_mut(kind) {
            lasting.add(self.coverage, object);
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
    /// When it ended, if it did.
    ended: Option<Duration>,
    /// Whether a line said that it began.
    is_said: bool,
    /// How often it began again soon after its end.
    recurrences: u32,
    /// The hashes of its objects; empty if there are more than [`MAX_OBJECTS`].
    objects: BTreeSet<u64>,
    /// The number of its objects.
    count: usize,
    samples: Vec<String>,
    /// The objects since the last report.
    seen: Seen,
    /// The number of objects that no line has mentioned, and the first of them.
    unsaid: usize,
    unsaid_texts: Vec<String>,
    /// The number of events that equal an earlier one, since the last summary.
    repeated: usize,
    /// The number of lines that may be written before `due`.
    budget: usize,
    /// When the next summary is due, and the time until the one after it.
    due: Duration,
    pause: Duration,
}

/// The objects of a report.
#[derive(Debug, Default)]
struct Seen {
    hashes: BTreeSet<u64>,
    count: usize,
    samples: Vec<String>,
}

impl Lasting {
    fn new(level: Level, now: Duration) -> Self {
        Self {
            level,
            since: now,
            ended: None,
            is_said: false,
            recurrences: 0,
            objects: BTreeSet::new(),
            count: 0,
            samples: Vec::new(),
            seen: Seen::default(),
            unsaid: 0,
            unsaid_texts: Vec::new(),
            repeated: 0,
            budget: HANDFUL,
            due: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
        }
    }

    fn add(&mut self, coverage: Coverage, object: String) {
        let mut hasher = DefaultHasher::new();
        object.hash(&mut hasher);
        let hash = hasher.finish();
        // Beyond the limit, hashes are not kept, so a new object cannot be distinguished from a known one.
        let are_counted_only = self.count > MAX_OBJECTS;
        let is_known = self.objects.contains(&hash) || self.seen.hashes.contains(&hash);
        let text = shorten(object);
        match coverage {
            Coverage::Events if is_known || are_counted_only => self.repeated += 1,
            _ if is_known || are_counted_only => {}
            _ => {
                self.unsaid += 1;
                if self.unsaid_texts.len() < HANDFUL {
                    self.unsaid_texts.push(text.clone());
                }
            }
        }
        let seen = &mut self.seen;
        seen.count += 1;
        if seen.samples.len() < SAMPLES {
            seen.samples.push(text);
        }
        // One hash more than the limit, by which `learn` sees that there are too many.
        if seen.hashes.len() <= MAX_OBJECTS {
            seen.hashes.insert(hash);
        }
    }

    /// Appends the lines that are due at the end of a report.
    fn settle(&mut self, kind: &str, coverage: Coverage, now: Duration, lines: &mut Vec<Line>) {
        let seen = std::mem::take(&mut self.seen);
        if seen.count == 0 {
            match coverage {
                Coverage::All if self.ended.is_none() => return self.end(kind, now, lines),
                _ if self.ended.is_some() => return,
                // Nothing new, but a summary may be due.
                _ => {}
            }
        } else {
            self.learn(coverage, seen, now);
        }
        if coverage != Coverage::Events && now >= self.due {
            if self.is_said {
                self.sum_up(kind, now, lines);
            }
            self.begin_interval(now);
        }
        self.say_unsaid(kind, now, lines);
    }

    /// Takes over the objects of a report.
    fn learn(&mut self, coverage: Coverage, seen: Seen, now: Duration) {
        if self.ended.take().is_some() {
            self.recurrences += 1;
            self.since = now;
        }
        self.samples = seen.samples;
        match coverage {
            Coverage::All => {
                self.count = seen.count;
                self.objects = seen.hashes;
            }
            Coverage::Part | Coverage::Events => {
                self.objects.extend(seen.hashes);
                self.count = self.objects.len().max(seen.count);
            }
        }
        if self.count > MAX_OBJECTS {
            self.objects.clear();
        }
    }

    fn end(&mut self, kind: &str, now: Duration, lines: &mut Vec<Line>) {
        if self.is_said {
            let took = duration(now.saturating_sub(self.since));
            lines.push(Line {
                level: Level::INFO,
                text: format!("over after {took}: {}", self.objects_text(kind)),
            });
        }
        // A condition that begins and ends again and again must not get new lines each time.
        let pause = (FIRST_PAUSE * 2_u32.saturating_pow(self.recurrences)).min(LONGEST_PAUSE);
        *self = Self {
            ended: Some(now),
            recurrences: self.recurrences,
            budget: self.budget,
            due: self.due.min(now + pause),
            pause,
            ..Self::new(self.level, now)
        };
    }

    fn sum_up(&mut self, kind: &str, now: Duration, lines: &mut Vec<Line>) {
        let took = duration(now.saturating_sub(self.since));
        self.push(
            lines,
            format!("still, after {took}: {}", self.objects_text(kind)),
        );
        self.unsaid = 0;
        self.unsaid_texts.clear();
    }

    /// Appends a line about the events that no line has mentioned. Returns `false` if there are none.
    fn sum_up_events(&mut self, kind: &str, now: Duration, lines: &mut Vec<Line>) -> bool {
        let further = self.unsaid + self.repeated;
        let texts = match self.unsaid {
            0 => samples(&self.samples),
            _ => samples(&self.unsaid_texts),
        };
        if further > 0 {
            let took = duration(now.saturating_sub(self.since));
            self.push(
                lines,
                format!("{further} more {kind} in {took}; for example: {texts}"),
            );
        }
        self.unsaid = 0;
        self.unsaid_texts.clear();
        self.repeated = 0;
        self.objects.clear();
        self.count = 0;
        self.since = now;
        self.begin_interval(now);
        further > 0
    }

    /// Sets the time of the next summary, and permits further lines until then.
    fn begin_interval(&mut self, now: Duration) {
        self.budget = HANDFUL;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.due = now + self.pause;
    }

    /// Appends lines about objects without one, if the budget has room.
    fn say_unsaid(&mut self, kind: &str, now: Duration, lines: &mut Vec<Line>) {
        if self.unsaid == 0 || self.budget == 0 {
            return;
        }
        let again = match self.recurrences > 0 && !self.is_said {
            true => "again: ",
            false => "",
        };
        if self.unsaid <= self.budget {
            self.budget -= self.unsaid;
            for text in std::mem::take(&mut self.unsaid_texts) {
                self.push(lines, format!("{again}{text}"));
            }
        } else {
            self.budget -= 1;
            let texts = samples(&self.unsaid_texts);
            let text = format!("{again}{} {kind}; for example: {texts}", self.unsaid);
            self.push(lines, text);
        }
        if !self.is_said {
            self.is_said = true;
            self.due = now + self.pause;
        }
        self.unsaid = 0;
        self.unsaid_texts.clear();
    }

    fn push(&self, lines: &mut Vec<Line>, text: String) {
        let level = self.level;
        lines.push(Line { level, text });
    }

    /// Returns the object, if there is only one; otherwise their number and some of them.
    fn objects_text(&self, kind: &str) -> String {
        match &self.samples[..] {
            [only] if self.count <= 1 => only.clone(),
            some => format!("{} {kind}; for example: {}", self.count, samples(some)),
        }
    }

    /// Returns whether it ended so long ago that a recurrence is a new condition.
    fn is_forgettable(&self, now: Duration) -> bool {
        self.ended.is_some() && now >= self.due + self.pause
    }
}

fn samples(texts: &[String]) -> String {
    let texts: Vec<&str> = texts.iter().take(SAMPLES).map(String::as_str).collect();
    texts.join("; ")
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
