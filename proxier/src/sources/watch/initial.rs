//! A list until its end.

use std::time::{Duration, Instant};

use super::failure::RequestFailure;
use crate::cluster::problem::MAX_PROBLEMS;
use crate::cluster::store::{Parsed, Update};

/// The objects of a list that is not complete.
///
/// A server that does not know streaming lists, or a proxy before it, may send the objects and then changes, but no end.
/// Such a streaming list fails: at a bookmark that does not end it, or when no object has been added for the time limit of a
/// piece.
pub(super) struct InitialList<T> {
    objects: Vec<Parsed<T>>,
    /// The number of problems of the objects.
    problems: usize,
    /// Whether an object was added since the last check.
    has_grown: bool,
    /// When the list was last seen to grow.
    grew: Instant,
}

impl<T> InitialList<T> {
    /// Returns an empty list, with memory for as many objects as the list before had: while a list grows, it would need
    /// up to three times its memory.
    pub(super) fn after(count: usize) -> Self {
        Self {
            objects: Vec::with_capacity(count),
            problems: 0,
            has_grown: true,
            grew: Instant::now(),
        }
    }

    /// Fails if no object has been added for `limit`. To be called for each piece.
    pub(super) fn check(&mut self, limit: Duration) -> Result<(), RequestFailure> {
        if std::mem::take(&mut self.has_grown) {
            self.grew = Instant::now();
        } else if self.grew.elapsed() > limit {
            return Err(Self::endless());
        }
        Ok(())
    }

    /// Returns the failure of a list that has no end.
    pub(super) fn endless() -> RequestFailure {
        let why = "the bookmark that ends a streaming list is missing";
        RequestFailure::Malformed(why.into())
    }

    /// Adds objects of the list.
    pub(super) fn add(&mut self, objects: impl IntoIterator<Item = Parsed<T>>) {
        objects.into_iter().for_each(|object| self.push(object));
    }

    /// Applies a change that arrived before the end.
    pub(super) fn apply(&mut self, change: Update<T>) {
        match change {
            // A duplicate does no harm, because the store uses the last one of a `Reset`.
            Update::Apply(object) => self.push(object),
            Update::Delete(name) => self.objects.retain(|object| object.name != name),
            Update::Reset(all) => {
                self.objects.clear();
                all.into_iter().for_each(|object| self.push(object));
            }
            Update::Merge(some) => some.into_iter().for_each(|object| self.push(object)),
        }
    }

    /// Adds an object with those of its problems for which the list has room, but at least one, which tells that the
    /// object has some.
    fn push(&mut self, mut object: Parsed<T>) {
        let room = MAX_PROBLEMS.saturating_sub(self.problems).max(1);
        object.problems.truncate(room);
        self.problems += object.problems.len();
        self.has_grown = true;
        self.objects.push(object);
    }

    /// Returns all objects.
    pub(super) fn finish(self) -> Vec<Parsed<T>> {
        self.objects
    }
}
