//! Parts of the tables, and the changes of parts since the last write.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ::nftables::{Chain, Command, Element, Key, Table, Value, Verdict};

/// A part of the tables that a frontend, an address or a link needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dataplane) enum Part {
    /// An element of the set or map with this name, which only one of the tables has.
    Element(&'static str, Element),
    /// An element of the map of targets with this name.
    Target(&'static str, Key, SocketAddr),
    /// A chain of the table of family `inet`.
    Chain(Chain),
    /// A chain of the table of family `arp`.
    ArpChain(Chain),
}

/// The place of a part: two parts with one name exclude each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::dataplane) enum PartName {
    Element(&'static str, Key),
    /// No chain of one table has the name of a part of the other.
    Chain(Arc<str>),
}

/// Parts by name.
pub(in crate::dataplane) type Parts = BTreeMap<PartName, Part>;

impl Part {
    /// Returns an element of a set.
    pub(in crate::dataplane) fn member(
        set: &'static str,
        key: impl IntoIterator<Item = Value>,
    ) -> Self {
        Self::Element(set, Key::new(key).into())
    }

    /// Returns an element of a verdict map.
    pub(in crate::dataplane) fn entry(map: &'static str, key: Key, verdict: Verdict) -> Self {
        let verdict = Some(verdict);
        Self::Element(map, Element { key, verdict })
    }

    /// Returns its name.
    pub(in crate::dataplane) fn name(&self) -> PartName {
        match self {
            Self::Element(set, element) => PartName::Element(set, element.key.clone()),
            Self::Target(map, key, _) => PartName::Element(map, key.clone()),
            Self::Chain(chain) | Self::ArpChain(chain) => PartName::Chain(chain.name.clone()),
        }
    }

    /// Adds the part to `table` or its companion.
    pub(in crate::dataplane) fn put_into(self, table: &mut Table) {
        let arp = table.arp.as_deref_mut();
        match self {
            Self::Element(name, element) => {
                let in_arp = arp.and_then(|arp| arp.sets.get_mut(name));
                if let Some(set) = table.sets.get_mut(name).or(in_arp) {
                    set.insert(element);
                }
            }
            Self::Target(name, key, target) => {
                if let Some(map) = table.sets.get_mut(name) {
                    map.insert_target(key, target);
                }
            }
            Self::Chain(chain) => table.add_chain(chain),
            Self::ArpChain(chain) => arp.into_iter().for_each(|it| it.add_chain(chain.clone())),
        }
    }
}

/// The changes of the rules since the last write: the part that the kernel has under a name, and the part that it
/// should have.
#[derive(Clone, Debug, Default)]
pub(in crate::dataplane) struct Changes(BTreeMap<PartName, [Option<Part>; 2]>);

impl Changes {
    /// Notes that the parts `new` replace `old`.
    pub(in crate::dataplane) fn note(&mut self, old: Parts, mut new: Parts) {
        for (name, part) in old {
            let after = new.remove(&name);
            if after.as_ref() != Some(&part) {
                self.set(name, Some(part), after);
            }
        }
        for (name, part) in new {
            self.set(name, None, Some(part));
        }
    }

    fn set(&mut self, name: PartName, before: Option<Part>, after: Option<Part>) {
        // If the part changed already, the kernel does not have `before`: an earlier change brought it.
        let [_, wanted] = self.0.entry(name).or_insert([before, None]);
        *wanted = after;
    }

    /// Returns the changed parts as tables, as they were and as they are; `None` if no part changed. `sets` are those of
    /// the table, without elements.
    pub(in crate::dataplane) fn tables(&self, sets: impl Fn() -> Table) -> Option<(Table, Table)> {
        let mut changes = self.0.values().filter(|[old, new]| old != new).peekable();
        changes.peek()?;
        let mut tables = [sets(), sets()];
        for parts in changes {
            for (table, part) in tables.iter_mut().zip(parts.clone()) {
                part.into_iter().for_each(|part| part.put_into(table));
            }
        }
        Some(tables.into())
    }
}

/// Parts that are added to a table that has their sets.
#[derive(Debug, Default)]
pub(in crate::dataplane) struct Additions {
    /// By the name of the set, because one message adds elements to one set.
    elements: BTreeMap<&'static str, (Arc<str>, Vec<Command>)>,
    chains: Vec<Chain>,
}

impl Additions {
    /// Adds a part, which is not one of family `arp`.
    pub(in crate::dataplane) fn add(&mut self, part: Part) {
        match part {
            Part::Element(set, element) => {
                let (name, commands) = self.of_set(set);
                commands.push(Command::AddElement(name.clone(), element));
            }
            Part::Target(map, key, target) => {
                let (name, commands) = self.of_set(map);
                commands.push(Command::AddTarget(name.clone(), key, target));
            }
            Part::Chain(chain) | Part::ArpChain(chain) => self.chains.push(chain),
        }
    }

    fn of_set(&mut self, set: &'static str) -> &mut (Arc<str>, Vec<Command>) {
        let of_set = self.elements.entry(set);
        of_set.or_insert_with(|| (set.into(), Vec::new()))
    }

    /// Returns the commands, in an order that the kernel accepts.
    pub(in crate::dataplane) fn into_commands(self) -> Vec<Command> {
        let chains = self.chains.iter();
        let mut commands: Vec<Command> = chains
            .map(|chain| Command::AddChain(chain.name.clone(), chain.hook))
            .collect();
        commands.extend(self.elements.into_values().flat_map(|(_, added)| added));
        let rules = self
            .chains
            .into_iter()
            .flat_map(|Chain { name, rules, .. }| {
                let rules = rules.into_iter();
                rules.map(move |rule| Command::AddRule(name.clone(), rule))
            });
        commands.extend(rules);
        commands
    }
}
