//! A complete list of the objects of one kind.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use super::Parsed;
use super::encoded::Encoded;
use super::encoding::{push_bytes, take_bytes};
use super::kinds::ObjectKind;
use super::shared::SharedValues;
use crate::model::ObjectName;
use crate::problem::Problem;

/// The objects of one kind, encoded as they arrive.
///
/// A list is in memory beside the objects that it replaces, while it arrives and while it waits. Encoded, it takes
/// a sixth, and one block of memory that the allocator returns.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectList<T> {
    /// The objects, each with its length.
    encoded: Vec<u8>,
    length: usize,
    /// The problems of the objects that have some, by the object's place.
    problems: BTreeMap<usize, Box<[Problem]>>,
    /// The values whose numbers the objects have, in the order of their first use, so that equal lists are equal
    /// bytes.
    shared: SharedValues,
    kind: PhantomData<fn() -> T>,
}

impl<T: ObjectKind> ObjectList<T> {
    /// Adds an object at the end.
    pub fn push(&mut self, parsed: Parsed<T>) {
        let encoded = Encoded::encode(&parsed.name, parsed.object.as_ref(), &mut self.shared);
        self.push_encoded(&encoded, parsed.problems);
    }

    fn push_encoded(&mut self, encoded: &Encoded, problems: Vec<Problem>) {
        push_bytes(&mut self.encoded, encoded.bytes());
        if !problems.is_empty() {
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
                self.push_encoded(&encoded, problems.to_vec());
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
        let mut rest = &*self.encoded;
        let all = std::iter::from_fn(move || take_bytes(&mut rest)).enumerate();
        all.map(|(place, bytes)| {
            let problems = self.problems.get(&place);
            (bytes, problems.map_or(&[][..], |problems| problems))
        })
    }

    /// Returns the values whose numbers the objects have.
    pub(super) fn shared(&self) -> &SharedValues {
        &self.shared
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
            encoded: Vec::new(),
            length: 0,
            problems: BTreeMap::new(),
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
