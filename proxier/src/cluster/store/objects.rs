//! The objects of one kind, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::ops::{Bound, Range};

use super::encoded::Encoded;
use super::faults::{Faults, FaultyObjects};
use super::key::{self, KeyBytes};
use super::kinds::ObjectKind;
use super::shared::{Renumbering, SharedValues};
use super::{Parsed, Update};
use crate::cluster::model::ObjectName;
use crate::dataplane::ipvs::packed::pack_set;

/// The objects of one kind, encoded.
#[derive(Clone, Debug)]
pub(super) struct Objects<T> {
    encoded: BTreeSet<Encoded>,
    /// The groups of the objects that are not in the usual group of their name. Without it, they could not be
    /// found by name.
    unusual_groups: BTreeMap<ObjectName, Box<str>>,
    /// The problems of the objects that have some.
    faulty: FaultyObjects,
    kind: PhantomData<fn() -> T>,
}

/// An object at rest with its problems.
struct Stored {
    encoded: Encoded,
    faults: Option<Faults>,
}

impl Stored {
    /// Returns whether nothing of the object can be used because of its problems.
    fn is_unusable(&self) -> bool {
        self.faults.is_some() && !self.encoded.has_content()
    }
}

impl PartialEq for Stored {
    fn eq(&self, other: &Self) -> bool {
        self.encoded.bytes() == other.encoded.bytes() && self.faults == other.faults
    }
}

/// A change of one object.
pub(super) struct ObjectChange<'a> {
    /// The object before or after the change. Both have the same name.
    object: &'a Encoded,
    pub(super) old: Option<&'a Encoded>,
    pub(super) new: Option<&'a Encoded>,
}

impl ObjectChange<'_> {
    /// Returns the object's name. It is not at hand: making it costs memory, and a first list needs none.
    pub(super) fn name(&self) -> ObjectName {
        self.object.name()
    }
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            encoded: BTreeSet::new(),
            unusual_groups: BTreeMap::new(),
            faulty: FaultyObjects::default(),
            kind: PhantomData,
        }
    }
}

impl<T: ObjectKind> Objects<T> {
    pub(super) fn get(&self, name: &ObjectName, shared: &SharedValues) -> Option<T> {
        let encoded = self.encoded.get(&*self.key(name))?;
        encoded.decode(name.clone(), shared)
    }

    /// Returns whether the object exists, even if this node uses no part of it.
    pub(super) fn has(&self, name: &ObjectName) -> bool {
        self.encoded.contains(&*self.key(name))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.encoded.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.encoded.len()
    }

    pub(super) fn all(&self, shared: &SharedValues) -> impl Iterator<Item = T> {
        let all = self.encoded.iter();
        all.filter_map(|encoded| encoded.decode(encoded.name(), shared))
    }

    /// Returns the objects of a group, in an order that depends on their names only.
    pub(super) fn group<'a>(
        &'a self,
        group: &ObjectName,
        shared: &'a SharedValues,
    ) -> impl Iterator<Item = T> + use<'a, T> {
        let Range { start, end } = key::range(group);
        // Searches for one bound only: most groups have one object, and a search takes longer than the walk.
        let from = (Bound::Included(&*start), Bound::Unbounded);
        let encoded = self.encoded.range::<[u8], _>(from);
        encoded
            .take_while(move |encoded| encoded.key() < &*end)
            .filter_map(|encoded| encoded.decode(encoded.name(), shared))
    }

    pub(super) fn faulty(&self) -> &FaultyObjects {
        &self.faulty
    }

    /// Applies `change` and calls `differs` for each changed object.
    pub(super) fn update(
        &mut self,
        change: Update<T>,
        shared: &mut SharedValues,
        mut differs: impl FnMut(ObjectChange<'_>, &SharedValues),
    ) {
        match change {
            Update::Apply(new) => self.replace(new, shared, &mut differs),
            Update::Merge(some) => {
                for new in some {
                    self.replace(new, shared, &mut differs);
                }
            }
            Update::Delete(name) => {
                if let Some(old) = self.take(&name) {
                    remove(&old.encoded, shared, &mut differs);
                }
            }
            Update::Reset(mut all) => {
                // Each object passes from one set to the other, and the objects at rest reuse the memory of the
                // list's blocks, so a relist needs no memory of its own.
                let mut before = std::mem::take(self);
                self.faulty = before.faulty.begin_again();
                let shared_before = all.take_shared();
                let mut numbers = Renumbering::new(&shared_before);
                all.consume(|bytes, problems| {
                    let new = Stored {
                        encoded: Encoded::renumbered(bytes, &mut numbers, shared),
                        faults: None,
                    };
                    // The last of several objects with one name wins.
                    let old = before.take_older(&new.encoded);
                    let old = old.or_else(|| self.take_older(&new.encoded));
                    self.put(old, new, problems, shared, &mut differs);
                });
                for old in before.encoded {
                    remove(&old, shared, &mut differs);
                }
                // Most objects arrive in a first list, so this decides the memory per object.
                pack_set(&mut self.encoded);
            }
        }
    }

    fn replace(
        &mut self,
        new: Parsed<T>,
        shared: &mut SharedValues,
        differs: &mut impl FnMut(ObjectChange<'_>, &SharedValues),
    ) {
        let stored = Stored {
            encoded: Encoded::encode(&new.name, new.object.as_ref(), shared),
            faults: None,
        };
        let old = self.take(&new.name);
        self.put(old, stored, new.problems.into(), shared, differs);
    }

    /// Adds `new` with its `problems`, which replaces `old`.
    fn put(
        &mut self,
        old: Option<Stored>,
        mut new: Stored,
        problems: Faults,
        shared: &mut SharedValues,
        differs: &mut impl FnMut(ObjectChange<'_>, &SharedValues),
    ) {
        new.faults = self.faulty.admit(problems);
        if let Some(old) = &old
            && new.is_unusable()
        {
            // The object still exists in the cluster, so its clients must still be served.
            let numbers = old.encoded.numbers();
            numbers.for_each(|number| shared.acquire_again(number));
            new.encoded = old.encoded.clone();
        }
        if old.as_ref() != Some(&new) {
            let change = ObjectChange {
                object: &new.encoded,
                old: old.as_ref().map(|old| &old.encoded),
                new: Some(&new.encoded),
            };
            differs(change, shared);
        }
        if let Some(old) = old {
            release(&old.encoded, shared);
        }
        if let Some(group) = new.encoded.unusual_group() {
            self.unusual_groups.insert(new.encoded.name(), group.into());
        }
        if let Some(faults) = new.faults {
            self.faulty.insert(new.encoded.name(), faults);
        }
        self.encoded.insert(new.encoded);
    }

    fn take(&mut self, name: &ObjectName) -> Option<Stored> {
        let encoded = self.encoded.take(&*self.key(name))?;
        self.unusual_groups.remove(name);
        let faults = self.faulty.remove(name);
        Some(Stored { encoded, faults })
    }

    /// Takes the object with the name of `new`.
    fn take_older(&mut self, new: &Encoded) -> Option<Stored> {
        let unusual = &self.unusual_groups;
        let had_unusual = || !unusual.is_empty() && unusual.contains_key(&new.name());
        if new.unusual_group().is_some() || had_unusual() {
            // The older object may be in another group, and have another key.
            return self.take(&new.name());
        }
        // A list is nearly in the order of the keys, so nearly all its objects come after those before them.
        if self.encoded.last().is_none_or(|last| last < new) {
            return None;
        }
        let encoded = self.encoded.take(new)?;
        let faults = match self.faulty.is_empty() {
            true => None,
            false => self.faulty.remove(&new.name()),
        };
        Some(Stored { encoded, faults })
    }

    fn key(&self, name: &ObjectName) -> KeyBytes {
        let usual = T::usual_group(name.name());
        let group = self.unusual_groups.get(name);
        key::encode(name, group.map_or(usual, |group| group), usual)
    }
}

fn remove(
    old: &Encoded,
    shared: &mut SharedValues,
    differs: &mut impl FnMut(ObjectChange<'_>, &SharedValues),
) {
    let change = ObjectChange {
        object: old,
        old: Some(old),
        new: None,
    };
    differs(change, shared);
    release(old, shared);
}

fn release(encoded: &Encoded, shared: &mut SharedValues) {
    encoded.numbers().for_each(|number| shared.release(number));
}
