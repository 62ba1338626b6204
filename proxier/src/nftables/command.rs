//! Commands that change a table.

use std::fmt;
use std::sync::Arc;

use super::rule::Rule;
use super::set::{Element, Key, Set};
use super::table::Hook;

/// A command that changes a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a set without its elements.
    AddSet(Arc<Set>),
    /// Deletes a set and its elements. No rule may refer to it.
    DeleteSet(Arc<str>),
    /// Adds an element to a set. The kernel accepts an existing element with the same data.
    AddElement(Arc<str>, Element),
    /// Deletes the element with this key from a set.
    DeleteElement(Arc<str>, Key),
    /// Adds a chain without rules.
    AddChain(Arc<str>, Option<Hook>),
    /// Deletes a chain. No rule or element may refer to it.
    DeleteChain(Arc<str>),
    /// Appends a rule to a chain.
    AddRule(Arc<str>, Rule),
    /// Deletes all rules of a chain.
    FlushChain(Arc<str>),
}

impl Command {
    /// Returns the command as nft takes it, for the table `name` of family `inet`.
    pub fn in_table<'a>(&'a self, name: &'a str) -> impl fmt::Display + 'a {
        InTable {
            command: self,
            name,
        }
    }
}

struct InTable<'a> {
    command: &'a Command,
    name: &'a str,
}

impl fmt::Display for InTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.name;
        match self.command {
            Command::AddSet(set) => {
                let word = if set.kind.is_map() { "map" } else { "set" };
                let (name, definition) = (&set.name, set.definition());
                write!(f, "add {word} inet {table} {name} {{ {definition}; }}")
            }
            Command::DeleteSet(name) => write!(f, "delete set inet {table} {name}"),
            Command::AddElement(set, element) => {
                write!(f, "add element inet {table} {set} {{ {element} }}")
            }
            Command::DeleteElement(set, key) => {
                write!(f, "delete element inet {table} {set} {{ {key} }}")
            }
            Command::AddChain(name, None) => write!(f, "add chain inet {table} {name}"),
            Command::AddChain(name, Some(hook)) => {
                write!(f, "add chain inet {table} {name} {{ {hook} }}")
            }
            Command::DeleteChain(name) => write!(f, "delete chain inet {table} {name}"),
            Command::AddRule(chain, rule) => write!(f, "add rule inet {table} {chain} {rule}"),
            Command::FlushChain(name) => write!(f, "flush chain inet {table} {name}"),
        }
    }
}
