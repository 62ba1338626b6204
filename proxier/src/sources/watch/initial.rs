//! A streaming list until its end.

use super::connection::silence::PARTS;
use super::failure::RequestFailure;
use crate::store::{ObjectKind, ObjectList, Parsed, Update};

/// The objects of a streaming list that is not complete.
///
/// A server that does not know streaming lists, or a proxy before it, may send the objects and then changes, but no end.
/// Such a list fails: at a bookmark that does not end it, or when no object has been added for the time limit of a piece.
pub(super) struct InitialList<T> {
    objects: ObjectList<T>,
    /// The number of parts of the time limit since the last object.
    idle: u32,
}

impl<T: ObjectKind> InitialList<T> {
    /// Returns an empty list.
    pub(super) fn new() -> Self {
        Self {
            objects: ObjectList::default(),
            idle: 0,
        }
    }

    /// Records that a part of the time limit began. Fails if the limit is over.
    pub(super) fn begin_part(&mut self) -> Result<(), RequestFailure> {
        self.idle += 1;
        match self.idle > PARTS + 1 {
            true => Err(Self::endless()),
            false => Ok(()),
        }
    }

    /// Returns the failure of a list that has no end.
    pub(super) fn endless() -> RequestFailure {
        let why = "the bookmark that ends a streaming list is missing";
        RequestFailure::Malformed(why.into())
    }

    /// Adds an object of the list.
    pub(super) fn add(&mut self, object: Parsed<T>) {
        self.idle = 0;
        self.objects.push(object);
    }

    /// Applies a change that arrived before the end.
    pub(super) fn apply(&mut self, change: Update<T>) {
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
