//! Commands that change a table.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::key::Key;
use crate::rule::Rule;
use crate::set::{Data, Element, Set};
use crate::table::Hook;

/// A command that changes a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Adds a set without its elements.
    AddSet(Arc<Set>),
    /// Deletes a set and its elements. No rule may refer to it.
    DeleteSet(Arc<str>),
    /// Adds an element to a set. The kernel accepts an existing element with the same data.
    AddElement(Arc<str>, Element),
    /// Adds an element with a target to a map, as [`Command::AddElement`].
    AddTarget(Arc<str>, Key, SocketAddr),
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
    /// Adds the table of family `arp` with the same name.
    AddArpTable,
    /// Deletes that table with its content.
    DeleteArpTable,
    /// Applies the command to that table.
    InArpTable(Box<Self>),
}

/// nft's name of the family of our main table.
pub(crate) const INET: &str = "inet";
/// nft's name of the family of its companion.
pub(crate) const ARP: &str = "arp";

impl Command {
    /// Returns the command for the companion of family `arp`.
    pub(crate) fn in_arp(self) -> Self {
        Self::InArpTable(Box::new(self))
    }

    /// Returns the command as it is in the table that it concerns.
    pub(crate) fn in_its_table(&self) -> &Self {
        match self {
            Self::InArpTable(command) => command,
            other => other,
        }
    }

    /// Returns the command as nft takes it, for the table `name`.
    pub fn in_table<'a>(&'a self, name: &'a str) -> impl fmt::Display + 'a {
        InTable {
            command: self,
            family: INET,
            name,
        }
    }
}

struct InTable<'a> {
    command: &'a Command,
    family: &'static str,
    name: &'a str,
}

impl fmt::Display for InTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, name, .. } = *self;
        let table = format!("{family} {name}");
        match self.command {
            Command::AddSet(set) => {
                let word = if set.kind.is_map() { "map" } else { "set" };
                let (name, definition) = (&set.name, set.definition());
                write!(f, "add {word} {table} {name} {{ {definition}; }}")
            }
            Command::DeleteSet(name) => write!(f, "delete set {table} {name}"),
            Command::AddElement(set, element) => {
                write!(f, "add element {table} {set} {{ {element} }}")
            }
            Command::AddTarget(map, key, target) => {
                let data = Data::Target(*target);
                write!(f, "add element {table} {map} {{ {key}{data} }}")
            }
            Command::DeleteElement(set, key) => {
                write!(f, "delete element {table} {set} {{ {key} }}")
            }
            Command::AddChain(name, None) => write!(f, "add chain {table} {name}"),
            Command::AddChain(name, Some(hook)) => {
                write!(f, "add chain {table} {name} {{ {hook} }}")
            }
            Command::DeleteChain(name) => write!(f, "delete chain {table} {name}"),
            Command::AddRule(chain, rule) => write!(f, "add rule {table} {chain} {rule}"),
            Command::AddArpTable => write!(f, "add table {ARP} {name}"),
            Command::DeleteArpTable => write!(f, "delete table {ARP} {name}"),
            Command::InArpTable(command) => {
                let family = ARP;
                Self {
                    command,
                    family,
                    name,
                }
                .fmt(f)
            }
            Command::FlushChain(name) => write!(f, "flush chain {table} {name}"),
        }
    }
}
