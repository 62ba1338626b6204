//! One table of the ruleset, whose changes update the fingerprint and are kept for commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ruleset::Fingerprint;
use nftables::hash::{self, ElementHasher};
use nftables::{Chain, Element, Key, Table, Verdict};

/// A table that is open for changes.
pub(super) struct TrackedTable<'a> {
    pub(super) table: &'a mut Table,
    /// `None` if the changes are not recorded.
    pub(super) replaced: Option<&'a mut Replaced>,
    /// The fingerprint of the tables of both families.
    pub(super) fingerprint: &'a mut Fingerprint,
    pub(super) hasher: &'a mut ElementHasher,
    /// Maps the hash of a part to its hash in this family, so that equal parts of two families differ.
    pub(super) in_family: fn(u64) -> u64,
}

/// The changes of both tables since the last write.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub(super) inet: Replaced,
    pub(super) arp: Replaced,
}

/// The parts of a table that changed since the last write, as they were then.
///
/// `None` is a part that did not exist.
#[derive(Clone, Debug, Default)]
pub(super) struct Replaced {
    elements: BTreeMap<(Arc<str>, Key), Option<Element>>,
    chains: BTreeMap<Arc<str>, Option<Chain>>,
}

impl TrackedTable<'_> {
    /// Adds or replaces an element.
    pub(super) fn add_element(&mut self, set: &'static str, element: Element) {
        let Element { key, verdict } = element;
        let verdict = verdict.map(|verdict| self.with_shared_name(verdict));
        let Some(set) = self.table.sets.get_mut(set) else {
            return;
        };
        let name = set.name.clone();
        let added = self.hasher.hash(&name, &key, verdict.as_ref());
        let old = set.insert(Element {
            key: key.clone(),
            verdict,
        });
        self.add_hash(added);
        self.note_element(name, key, old);
    }

    /// Removes an element if it exists.
    pub(super) fn remove_element(&mut self, set: &'static str, key: Key) {
        let Some(set) = self.table.sets.get_mut(set) else {
            return;
        };
        let name = set.name.clone();
        let old = set.remove(key.clone());
        self.note_element(name, key, old);
    }

    /// Subtracts the old element from the fingerprint, and keeps it for [`Replaced::parts`].
    fn note_element(&mut self, set: Arc<str>, key: Key, old: Option<Element>) {
        if let Some(old) = &old {
            let removed = (self.hasher).hash(&set, &old.key, old.verdict.as_ref());
            self.subtract_hash(removed);
        }
        if let Some(replaced) = &mut self.replaced {
            // Only the first note since the last write: it has the element that the kernel has.
            replaced.elements.entry((set, key)).or_insert(old);
        }
    }

    /// Adds or replaces a chain.
    pub(super) fn add_chain(&mut self, chain: Chain) {
        let name = chain.name.clone();
        self.add_hash(hash::chain(&chain));
        let old = self.table.chains.insert(name.clone(), chain);
        self.note_chain(name, old);
    }

    /// Removes a chain if it exists.
    pub(super) fn remove_chain(&mut self, name: &Arc<str>) {
        if let Some(old) = self.table.chains.remove(name) {
            self.note_chain(name.clone(), Some(old));
        }
    }

    /// Does the same as [`TrackedTable::note_element`] for a chain.
    fn note_chain(&mut self, name: Arc<str>, old: Option<Chain>) {
        if let Some(old) = &old {
            self.subtract_hash(hash::chain(old));
        }
        if let Some(replaced) = &mut self.replaced {
            replaced.chains.entry(name).or_insert(old);
        }
    }

    fn add_hash(&mut self, hash: u64) {
        *self.fingerprint = self.fingerprint.wrapping_add((self.in_family)(hash));
    }

    fn subtract_hash(&mut self, hash: u64) {
        *self.fingerprint = self.fingerprint.wrapping_sub((self.in_family)(hash));
    }

    /// Returns the verdict with the chain's own copy of its name.
    ///
    /// Most elements lead to one of a few chains, so sharing the names saves memory.
    fn with_shared_name(&self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Goto(name) => {
                let known = self.table.chains.get_key_value(&name);
                Verdict::Goto(known.map_or(name, |(known, _)| known.clone()))
            }
            other => other,
        }
    }
}

impl Replaced {
    /// Returns two tables with only the changed parts of `table`: as they were, and as they are.
    ///
    /// Comparing the whole tables would cost their size.
    pub(super) fn parts(self, table: &Table) -> (Table, Table) {
        let (mut old, mut new) = (Table::default(), Table::default());
        for ((name, key), old_element) in self.elements {
            let Some(set) = table.sets.get(&name) else {
                continue;
            };
            let new_element = set.get(key);
            for (table, element) in [(&mut old, old_element), (&mut new, new_element)] {
                let part = table.sets.entry(name.clone());
                let part = part.or_insert_with(|| set.without_elements());
                element
                    .into_iter()
                    .for_each(|element| drop(part.insert(element)));
            }
        }
        for (name, old_chain) in self.chains {
            let new_chain = table.chains.get(&name).cloned();
            new.chains
                .extend(new_chain.map(|chain| (name.clone(), chain)));
            old.chains.extend(old_chain.map(|chain| (name, chain)));
        }
        (old, new)
    }
}
