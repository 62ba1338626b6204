//! A complete list of the objects of one kind.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use super::Parsed;
use super::blocks::Blocks;
use super::encoded::Encoded;
use super::kinds::ObjectKind;
use super::shared::SharedValues;
use crate::cluster::model::ObjectName;
use crate::cluster::problem::{MAX_PROBLEMS, Problem};

/// The objects of one kind, encoded as they arrive.
///
/// A list is in memory beside the objects that it replaces, while it arrives and while it waits. Encoded, it takes
/// a sixth.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectList<T> {
    /// The objects.
    encoded: Blocks,
    length: usize,
    /// The problems of the objects that have some, by the object's place.
    problems: BTreeMap<usize, Box<[Problem]>>,
    /// The number of these problems.
    listed: usize,
    /// The values whose numbers the objects have, in the order of their first use, so that equal lists are equal
    /// bytes.
    shared: SharedValues,
    kind: PhantomData<fn() -> T>,
}

impl<T: ObjectKind> ObjectList<T> {
    /// Adds an object at the end.
    pub fn push(&mut self, parsed: Parsed<T>) {
        let Self {
            encoded, shared, ..
        } = self;
        Encoded::append(&parsed.name, parsed.object.as_ref(), shared, encoded);
        self.finish_push(parsed.problems);
    }

    fn finish_push(&mut self, mut problems: Vec<Problem>) {
        if !problems.is_empty() {
            // One still tells that the object has some.
            problems.truncate(MAX_PROBLEMS.saturating_sub(self.listed).max(1));
            self.listed += problems.len();
            self.problems.insert(self.length, problems.into());
        }
        self.length += 1;
    }

    /// Removes the objects called `name`.
    ///
    /// # Cost
    /// Linear in the list, but decodes no object: a streaming list may have deletions before its end.
    pub(crate) fn remove(&mut self, name: &ObjectName) {
        let mut before = std::mem::take(self);
        self.shared = std::mem::take(&mut before.shared);
        for (bytes, problems) in before.entries() {
            let encoded = Encoded::copied(bytes);
            if encoded.name() == *name {
                encoded
                    .numbers()
                    .for_each(|number| self.shared.release(number));
            } else {
                self.encoded.push(bytes);
                self.finish_push(problems.to_vec());
            }
        }
    }

    /// Calls `edit` for each object.
    pub(crate) fn edit(&mut self, edit: impl Fn(&mut Parsed<T>)) {
        let edited = self.iter().map(|mut parsed| {
            edit(&mut parsed);
            parsed
        });
        *self = edited.collect();
    }

    /// Returns the objects.
    pub fn iter(&self) -> impl Iterator<Item = Parsed<T>> {
        self.entries().map(|(bytes, problems)| {
            let encoded = Encoded::copied(bytes);
            let name = encoded.name();
            Parsed {
                object: encoded.decode(name.clone(), &self.shared),
                name,
                problems: problems.to_vec(),
            }
        })
    }

    /// Returns the bytes and the problems of each object.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&[u8], &[Problem])> {
        let all = self.encoded.iter().enumerate();
        all.map(|(place, bytes)| {
            let problems = self.problems.get(&place);
            (bytes, problems.map_or(&[][..], |problems| problems))
        })
    }

    /// Takes the values whose numbers the objects have.
    pub(super) fn take_shared(&mut self) -> SharedValues {
        std::mem::take(&mut self.shared)
    }

    /// Calls `each` with the bytes and the problems of each object, and frees their memory on the way.
    pub(super) fn consume(mut self, mut each: impl FnMut(&[u8], Box<[Problem]>)) {
        let mut places = 0..;
        self.encoded.consume(|bytes| {
            let place = places.next().unwrap_or_default();
            each(bytes, self.problems.remove(&place).unwrap_or_default());
        });
    }
}

impl<T> ObjectList<T> {
    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the list has no objects.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl<T> Default for ObjectList<T> {
    fn default() -> Self {
        Self {
            encoded: Blocks::default(),
            length: 0,
            problems: BTreeMap::new(),
            listed: 0,
            shared: SharedValues::default(),
            kind: PhantomData,
        }
    }
}

impl<T: ObjectKind> FromIterator<Parsed<T>> for ObjectList<T> {
    fn from_iter<I: IntoIterator<Item = Parsed<T>>>(all: I) -> Self {
        let mut list = Self::default();
        list.extend(all);
        list
    }
}

impl<T: ObjectKind> Extend<Parsed<T>> for ObjectList<T> {
    fn extend<I: IntoIterator<Item = Parsed<T>>>(&mut self, all: I) {
        all.into_iter().for_each(|parsed| self.push(parsed));
    }
}

impl<T: ObjectKind> From<Vec<Parsed<T>>> for ObjectList<T> {
    fn from(all: Vec<Parsed<T>>) -> Self {
        all.into_iter().collect()
    }
}

impl<T: ObjectKind + fmt::Debug> fmt::Debug for ObjectList<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
