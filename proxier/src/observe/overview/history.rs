//! What rounds did, for those who look later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::cluster::problem::Problem;
use crate::dataplane::Counts;

/// The number of changes that are kept.
pub(crate) const KEPT_CHANGES: usize = 50;

/// The longest text of a change, in characters.
const MAX_TEXT: usize = 300;

/// The past of the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    /// The rounds that did not fail as a whole.
    pub(crate) rounds: u64,
    /// The rounds that failed as a whole.
    pub(crate) failed_rounds: u64,
    /// The changes that repaired what another program did.
    pub(crate) repairs: u64,
    /// How long the last round took.
    pub(crate) took: Duration,
    /// The size of what is programmed.
    pub(crate) counts: Counts,
    /// The present Problems.
    pub(crate) problems: Arc<[Problem]>,
    /// The last changes, the newest last.
    pub(crate) changes: VecDeque<Change>,
}

/// A change that a round made, or tried to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// When it was made last.
    pub(crate) at: SystemTime,
    /// Why.
    pub(crate) cause: String,
    /// What was changed.
    pub(crate) what: String,
    /// How often, without another change in between.
    pub(crate) times: u64,
}

impl Change {
    /// Returns a change at `at`. Long texts are cut, because names of objects are in them.
    pub(crate) fn new(at: SystemTime, cause: &str, what: &str) -> Self {
        let cut = |text: &str| text.chars().take(MAX_TEXT).collect();
        Self {
            at,
            cause: cut(cause),
            what: cut(what),
            times: 1,
        }
    }
}

impl Past {
    /// Adds a change. Another program may undo the same repair for hours; then only their number increases.
    pub(crate) fn add(&mut self, change: Change) {
        if let Some(last) = self.changes.back_mut()
            && (&last.cause, &last.what) == (&change.cause, &change.what)
        {
            last.times += change.times;
            last.at = change.at;
            return;
        }
        if self.changes.len() >= KEPT_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }
}

/// The past behind a lock, which both sides hold for a copy only.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Past>);

impl History {
    /// Returns a copy.
    pub(crate) fn read(&self) -> Past {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Past)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
