//! The problems of the objects of one kind, within a bound.

use std::collections::BTreeMap;

use crate::cluster::model::ObjectName;
use crate::cluster::problem::{MAX_PROBLEMS, Problem};

/// The problems of one object: at least one, or none if they are not listed.
pub(super) type Faults = Box<[Problem]>;

/// The problems of the objects that have some.
///
/// At most [`MAX_PROBLEMS`] are listed. Every node keeps them in memory, and anybody who may write a Service can cause
/// a hundred with each.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultyObjects {
    by_name: BTreeMap<ObjectName, Faults>,
    /// The number of listed problems.
    listed: usize,
    /// The number of objects whose problems are not listed.
    unlisted: usize,
    /// Increases with each change.
    revision: u64,
}

impl FaultyObjects {
    /// Returns the problems of an object as they are kept, without those for which there is no room.
    pub(super) fn admit(&self, problems: Faults) -> Option<Faults> {
        match problems.len() {
            0 => None,
            count if self.listed + count <= MAX_PROBLEMS => Some(problems),
            _ => Some(Faults::default()),
        }
    }

    pub(super) fn insert(&mut self, name: ObjectName, faults: Faults) {
        self.listed += faults.len();
        self.unlisted += usize::from(faults.is_empty());
        self.revision += 1;
        self.by_name.insert(name, faults);
    }

    pub(super) fn remove(&mut self, name: &ObjectName) -> Option<Faults> {
        let faults = self.by_name.remove(name)?;
        self.listed -= faults.len();
        self.unlisted -= usize::from(faults.is_empty());
        self.revision += 1;
        Some(faults)
    }

    /// Returns the empty set that replaces this one.
    pub(super) fn begin_again(&self) -> Self {
        Self {
            revision: self.revision + 1,
            ..Self::default()
        }
    }

    pub(super) fn listed(&self) -> impl Iterator<Item = &Problem> {
        self.by_name.values().flatten()
    }

    /// Returns the number of objects whose problems are not listed.
    pub(super) fn unlisted(&self) -> usize {
        self.unlisted
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}
