//! A streaming list until its end.

use std::time::{Duration, Instant};

use super::failure::RequestFailure;
use crate::cluster::store::{ObjectKind, ObjectList, Update};

/// The objects of a streaming list that is not complete.
///
/// A server that does not know streaming lists, or a proxy before it, may send the objects and then changes, but no end.
/// Such a list fails: at a bookmark that does not end it, or when no object has been added for the time limit of a piece.
pub(super) struct InitialList<T> {
    objects: ObjectList<T>,
    /// When the last object was added.
    grew: Instant,
}

impl<T: ObjectKind> InitialList<T> {
    /// Returns an empty list.
    pub(super) fn new() -> Self {
        Self {
            objects: ObjectList::default(),
            grew: Instant::now(),
        }
    }

    /// Fails if no object has been added for `limit`.
    pub(super) fn check(&self, limit: Duration) -> Result<(), RequestFailure> {
        if self.grew.elapsed() > limit {
            return Err(Self::endless());
        }
        Ok(())
    }

    /// Returns the failure of a list that has no end.
    pub(super) fn endless() -> RequestFailure {
        let why = "the bookmark that ends a streaming list is missing";
        RequestFailure::Malformed(why.into())
    }

    /// Applies a change that arrived before the end.
    pub(super) fn apply(&mut self, change: Update<T>) {
        self.grew = Instant::now();
        match change {
            // A duplicate does no harm, because the store uses the last one of a `Reset`.
            Update::Apply(parsed) => self.objects.push(parsed),
            Update::Delete(name) => self.objects.remove(&name),
            Update::Reset(all) => self.objects = all,
            Update::Merge(some) => self.objects.extend(some),
        }
    }

    /// Returns all objects.
    pub(super) fn finish(self) -> ObjectList<T> {
        self.objects
    }
}
