//! The objects of one kind, by name.

use std::collections::BTreeMap;

use super::faults::{Faults, FaultyObjects};
use super::{Parsed, Update};
use crate::cluster::model::ObjectName;
use crate::util::packed::pack;

/// The objects of one kind, by name.
#[derive(Clone, Debug)]
pub(super) struct Objects<T> {
    /// `None` is an object of which this node uses no part.
    objects: BTreeMap<ObjectName, Option<T>>,
    /// The problems of the objects that have some.
    faulty: FaultyObjects,
}

/// A change of one object.
pub(super) struct ObjectChange<'a, T> {
    /// The object's name.
    pub(super) name: &'a ObjectName,
    /// The parts that this node used before.
    pub(super) old: Option<&'a T>,
    /// The parts that this node uses now.
    pub(super) new: Option<&'a T>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            faulty: FaultyObjects::default(),
        }
    }
}

impl<T: Clone + PartialEq> Objects<T> {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.objects.get(name)?.as_ref()
    }

    /// Returns whether the object exists, even if this node uses no part of it.
    pub(super) fn has(&self, name: &ObjectName) -> bool {
        self.objects.contains_key(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns the objects of which this node uses a part, in order of names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.objects.values().flatten()
    }

    pub(super) fn faulty(&self) -> &FaultyObjects {
        &self.faulty
    }

    /// Applies `update` and calls `differs` for each changed object.
    pub(super) fn update(
        &mut self,
        update: Update<T>,
        mut differs: impl FnMut(ObjectChange<'_, T>),
    ) {
        match update {
            Update::Apply(new) => self.apply(new, None, &mut differs),
            Update::Merge(some) => {
                for new in some {
                    self.apply(new, None, &mut differs);
                }
            }
            Update::Delete(name) => {
                self.faulty.remove(&name);
                if let Some(old) = self.objects.remove(&name) {
                    ObjectChange::report_removal(&name, old.as_ref(), &mut differs);
                }
            }
            Update::Reset(all) => self.reset(all, &mut differs),
        }
    }

    /// `old_faults`: the problems that the object had before, if `faulty` no longer has them.
    fn apply(
        &mut self,
        mut new: Parsed<T>,
        old_faults: Option<Faults>,
        differs: &mut impl FnMut(ObjectChange<'_, T>),
    ) {
        let old_faults = self.faulty.remove(&new.name).or(old_faults);
        let old = self.objects.get_mut(&new.name);
        let replaced = succeed(
            old.as_deref(),
            old_faults,
            &mut new,
            &mut self.faulty,
            differs,
        );
        match (old, replaced) {
            (Some(old), Some(object)) => *old = object,
            (None, Some(object)) => _ = self.objects.insert(new.name, object),
            (_, None) => {}
        }
    }

    /// Changes only what differs: equal objects keep their memory, which other parts of the program share, and a relist
    /// needs no second map.
    fn reset(&mut self, mut all: Vec<Parsed<T>>, differs: &mut impl FnMut(ObjectChange<'_, T>)) {
        let is_first = self.objects.is_empty();
        let mut faulty_before = self.faulty.begin_again();
        std::mem::swap(&mut self.faulty, &mut faulty_before);
        // Sorted already, as the API server lists objects by name, so that no memory for sorting is needed.
        if !all.is_sorted_by_key(|new| &new.name) {
            all.sort_by(|one, other| one.name.cmp(&other.name));
        }
        let mut listed = all.iter().map(|new| &new.name).peekable();
        self.objects.retain(|name, old| {
            while listed.next_if(|listed| *listed < name).is_some() {}
            let is_kept = listed.peek() == Some(&name);
            if !is_kept {
                ObjectChange::report_removal(name, old.as_ref(), differs);
            }
            is_kept
        });
        for new in all {
            let old_faults = faulty_before.remove(&new.name);
            self.apply(new, old_faults, differs);
        }
        if is_first {
            pack(&mut self.objects);
        }
    }
}

impl<T> ObjectChange<'_, T> {
    fn report_removal(
        name: &ObjectName,
        old: Option<&T>,
        differs: &mut impl FnMut(ObjectChange<'_, T>),
    ) {
        differs(ObjectChange {
            name,
            old,
            new: None,
        });
    }
}

/// Takes the object of `new`, which replaces `old` with its problems `old_faults`. `None` if both are equal.
///
/// Adds the problems of `new` to `faulty`.
fn succeed<T: Clone + PartialEq>(
    old: Option<&Option<T>>,
    old_faults: Option<Faults>,
    new: &mut Parsed<T>,
    faulty: &mut FaultyObjects,
    differs: &mut impl FnMut(ObjectChange<'_, T>),
) -> Option<Option<T>> {
    let object = if new.is_unusable() {
        // The object still exists in the cluster, so its clients must still be served.
        old.cloned().flatten()
    } else {
        new.object.take()
    };
    let faults = faulty.admit(std::mem::take(&mut new.problems).into());
    let is_same = old == Some(&object);
    if !is_same || old_faults != faults {
        differs(ObjectChange {
            name: &new.name,
            old: old.and_then(Option::as_ref),
            new: object.as_ref(),
        });
    }
    if let Some(faults) = faults {
        faulty.insert(new.name.clone(), faults);
    }
    (!is_same).then_some(object)
}
