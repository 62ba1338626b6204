//! Changes of a table.

use std::fmt;
use std::sync::Arc;

use super::rule::Rule;
use super::set::{Element, Key, Set};
use super::table::Hook;

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes a set; its elements come one by one.
    AddSet(Arc<Set>),
    /// Deletes a set that no rule names, with its elements.
    DeleteSet(Arc<str>),
    /// Puts an element into a set. It may be there already, with the same data.
    AddElement(Arc<str>, Element),
    /// Takes the element with this key out of a set.
    DeleteElement(Arc<str>, Key),
    /// Makes a chain without rules.
    AddChain(Arc<str>, Option<Hook>),
    /// Deletes a chain that nothing names.
    DeleteChain(Arc<str>),
    /// Appends a rule to a chain.
    AddRule(Arc<str>, Rule),
    /// Deletes all rules of a chain.
    FlushChain(Arc<str>),
}

impl Change {
    /// The same as a command for the table `name`; prints as nft would take it.
    pub fn in_table<'a>(&'a self, name: &'a str) -> InTable<'a> {
        InTable { change: self, name }
    }
}

/// A [`Change`] of a certain table.
#[derive(Clone, Copy, Debug)]
pub struct InTable<'a> {
    change: &'a Change,
    name: &'a str,
}

impl fmt::Display for InTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.name;
        match self.change {
            Change::AddSet(set) => {
                let word = if set.kind.is_map() { "map" } else { "set" };
                let (name, definition) = (&set.name, set.definition());
                write!(f, "add {word} inet {table} {name} {{ {definition}; }}")
            }
            Change::DeleteSet(name) => write!(f, "delete set inet {table} {name}"),
            Change::AddElement(set, element) => {
                write!(f, "add element inet {table} {set} {{ {element} }}")
            }
            Change::DeleteElement(set, key) => {
                write!(f, "delete element inet {table} {set} {{ {key} }}")
            }
            Change::AddChain(name, None) => write!(f, "add chain inet {table} {name}"),
            Change::AddChain(name, Some(hook)) => {
                write!(f, "add chain inet {table} {name} {{ {hook} }}")
            }
            Change::DeleteChain(name) => write!(f, "delete chain inet {table} {name}"),
            Change::AddRule(chain, rule) => write!(f, "add rule inet {table} {chain} {rule}"),
            Change::FlushChain(name) => write!(f, "flush chain inet {table} {name}"),
        }
    }
}
