//! The objects of one kind, by name.

use std::collections::{BTreeMap, BTreeSet};

use super::{Parsed, Update};
use crate::model::ObjectName;
use crate::problem::Problem;

/// A [`Parsed`] without its name, which is its key in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored<T> {
    pub(super) object: Option<T>,
    problems: Box<[Problem]>,
}

impl<T> From<Parsed<T>> for (ObjectName, Stored<T>) {
    fn from(parsed: Parsed<T>) -> Self {
        let stored = Stored {
            object: parsed.object,
            problems: parsed.problems.into(),
        };
        (parsed.name, stored)
    }
}

/// The objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Objects<T> {
    parsed: BTreeMap<ObjectName, Stored<T>>,
    /// The names of objects with problems.
    with_problems: BTreeSet<ObjectName>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            parsed: BTreeMap::new(),
            with_problems: BTreeSet::new(),
        }
    }
}

impl<T> Objects<T> {
    pub(super) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.parsed.get(name)?.object.as_ref()
    }

    /// Returns whether the object exists, even if this node uses no part of it.
    pub(super) fn has(&self, name: &ObjectName) -> bool {
        self.parsed.contains_key(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parsed.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        let all = self.parsed.values();
        all.filter_map(|parsed| parsed.object.as_ref())
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        let with_problems = self
            .with_problems
            .iter()
            .filter_map(|name| self.parsed.get(name));
        with_problems.flat_map(|parsed| parsed.problems.iter())
    }

    /// Adds `name` to the index of objects with problems, or removes it.
    fn update_problem_index(&mut self, name: &ObjectName, problems: &[Problem]) {
        if problems.is_empty() {
            self.with_problems.remove(name);
        } else if !self.with_problems.contains(name) {
            self.with_problems.insert(name.clone());
        }
    }
}

impl<T: Clone + PartialEq> Objects<T> {
    /// Applies `change` and calls `differs` for each changed object, with its old and new state.
    pub(super) fn update(
        &mut self,
        change: Update<T>,
        mut differs: impl FnMut(&ObjectName, Option<&Stored<T>>, Option<&Stored<T>>),
    ) {
        match change {
            Update::Apply(new) => self.replace(new, &mut differs),
            Update::Merge(some) => {
                for new in some {
                    self.replace(new, &mut differs);
                }
            }
            Update::Delete(name) => {
                if let Some(old) = self.parsed.remove(&name) {
                    differs(&name, Some(&old), None);
                    self.with_problems.remove(&name);
                }
            }
            Update::Reset(all) => {
                let mut before = std::mem::take(&mut self.parsed);
                self.with_problems.clear();
                // The last of several objects with one name wins. `collect` builds a B-tree with
                // full nodes, where insertions in order would leave them half empty; most objects
                // arrive in a first list, so this decides the memory per object.
                self.parsed = all.into_iter().map(Into::into).collect();
                for (name, new) in &mut self.parsed {
                    let old = before.remove(name);
                    new.keep_last_readable(old.as_ref());
                    let new = &*new;
                    if old.as_ref() != Some(new) {
                        differs(name, old.as_ref(), Some(new));
                    }
                    if !new.problems.is_empty() {
                        self.with_problems.insert(name.clone());
                    }
                }
                for (name, old) in before {
                    differs(&name, Some(&old), None);
                }
            }
        }
    }

    fn replace(
        &mut self,
        new: Parsed<T>,
        differs: &mut impl FnMut(&ObjectName, Option<&Stored<T>>, Option<&Stored<T>>),
    ) {
        let (name, mut new) = new.into();
        let old = self.parsed.get(&name);
        new.keep_last_readable(old);
        if old != Some(&new) {
            differs(&name, old, Some(&new));
            self.update_problem_index(&name, &new.problems);
            self.parsed.insert(name, new);
        }
    }
}

impl<T: Clone> Stored<T> {
    /// Copies the content of `before` if this object cannot be used. It still exists in the cluster, so its
    /// clients must still be served.
    fn keep_last_readable(&mut self, before: Option<&Self>) {
        if self.object.is_none() && !self.problems.is_empty() {
            self.object = before.and_then(|before| before.object.clone());
        }
    }
}
