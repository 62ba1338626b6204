//! A table: chains and sets by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::command::Command;
use super::rule::{Rule, Verdict};
use super::set::{Element, Key, Set, write_element};

/// A table of family `inet`.
///
/// # Invariant
/// Sets and chains are stored under their own names. Rules and elements refer only to sets and chains
/// of this table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Its sets and maps, by name.
    pub sets: BTreeMap<Arc<str>, Set>,
    /// Its chains, by name.
    pub chains: BTreeMap<Arc<str>, Chain>,
}

static EMPTY: Table = Table {
    sets: BTreeMap::new(),
    chains: BTreeMap::new(),
};

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name, unique in its table.
    pub name: Arc<str>,
    /// Its hook; `None` if only other chains jump to it.
    pub hook: Option<Hook>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// The place in the kernel's packet path where a chain runs. Its policy is accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `type filter hook input`, at this priority.
    Input(i32),
    /// `type filter hook output`, at this priority.
    Output(i32),
    /// `type filter hook postrouting`, at this priority.
    Postrouting(i32),
    /// `type nat hook postrouting priority srcnat`, which sees the first packet of each connection.
    SourceNat,
}

impl Hook {
    /// `NF_IP_PRI_NAT_SRC`
    pub(super) const SOURCE_NAT: i32 = 100;

    pub(super) fn number(self) -> u32 {
        match self {
            Self::Input(_) => 1,
            Self::Output(_) => 3,
            Self::Postrouting(_) | Self::SourceNat => 4,
        }
    }

    pub(super) fn priority(self) -> i32 {
        match self {
            Self::Input(priority) | Self::Output(priority) | Self::Postrouting(priority) => {
                priority
            }
            Self::SourceNat => Self::SOURCE_NAT,
        }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::SourceNat => "nat",
            _ => "filter",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hook = match self {
            Self::Input(_) => "input",
            Self::Output(_) => "output",
            Self::Postrouting(_) | Self::SourceNat => "postrouting",
        };
        write!(f, "type {} hook {hook} priority ", self.kind())?;
        match self.priority() {
            -300 => f.write_str("raw")?,
            -150 => f.write_str("mangle")?,
            0 => f.write_str("filter")?,
            50 => f.write_str("security")?,
            Self::SOURCE_NAT if self.number() == Self::SourceNat.number() => {
                f.write_str("srcnat")?;
            }
            other => other.fmt(f)?,
        }
        f.write_str("; policy accept;")
    }
}

impl Chain {
    /// Returns a chain without a hook.
    pub fn new(name: impl Into<Arc<str>>, rules: impl Into<Vec<Rule>>) -> Self {
        Self {
            name: name.into(),
            hook: None,
            rules: rules.into(),
        }
    }

    /// Returns a chain at a hook.
    pub fn at(name: impl Into<Arc<str>>, hook: Hook, rules: impl Into<Vec<Rule>>) -> Self {
        Self {
            hook: Some(hook),
            ..Self::new(name, rules)
        }
    }
}

impl Table {
    /// Adds a set, or replaces the set of that name.
    pub fn add_set(&mut self, set: Set) {
        self.sets.insert(set.name.clone(), set);
    }

    /// Adds a chain, or replaces the chain of that name.
    pub fn add_chain(&mut self, chain: Chain) {
        self.chains.insert(chain.name.clone(), chain);
    }

    /// Returns whether the table has a set `set` with an element `key`.
    pub fn has_element(&self, set: &str, key: &Key) -> bool {
        let set = self.sets.get(set);
        set.is_some_and(|set| set.elements.contains_key(key))
    }

    /// Returns the commands that create the table, in an order that the kernel accepts.
    ///
    /// A large table has hundreds of thousands, so the iterator makes them one by one.
    pub fn creation(&self) -> impl Iterator<Item = Command> + '_ {
        EMPTY.additions(self)
    }

    /// Returns the commands that change this table to `wanted`, in an order that the kernel accepts.
    ///
    /// A set or chain whose definition differs is deleted and added again. Costs a comparison of every
    /// element.
    pub fn difference(&self, wanted: &Self) -> Vec<Command> {
        let mut commands = self.removals(wanted);
        commands.extend(self.additions(wanted));
        commands
    }

    /// Returns the commands that delete what `wanted` lacks.
    ///
    /// The kernel refuses to delete a set or chain to which a rule or an element refers (`EBUSY`). So
    /// rules and elements come first, then chains and sets.
    fn removals(&self, wanted: &Self) -> Vec<Command> {
        let mut commands = Vec::new();
        for chain in self.chains.values() {
            let after = wanted.chains.get(&chain.name);
            if !chain.rules.is_empty() && after.is_none_or(|after| after != chain) {
                commands.push(Command::FlushChain(chain.name.clone()));
            }
        }
        for set in self.sets.values() {
            let after = wanted.sets.get(&set.name);
            let after = after.filter(|after| after.is_defined_as(set));
            for (key, verdict) in &set.elements {
                if after.and_then(|after| after.elements.get(key)) != Some(verdict) {
                    commands.push(Command::DeleteElement(set.name.clone(), key.clone()));
                }
            }
        }
        for chain in self.chains.values() {
            let after = wanted.chains.get(&chain.name);
            if after.is_none_or(|after| after.hook != chain.hook) {
                commands.push(Command::DeleteChain(chain.name.clone()));
            }
        }
        for set in self.sets.values() {
            let after = wanted.sets.get(&set.name);
            if after.is_none_or(|after| !after.is_defined_as(set)) {
                commands.push(Command::DeleteSet(set.name.clone()));
            }
        }
        commands
    }

    /// Returns the commands that add what this table lacks.
    ///
    /// The kernel refuses references to missing sets and chains (`ENOENT`). So sets and chains come
    /// first, then the elements and rules that refer to them.
    fn additions<'a>(&'a self, wanted: &'a Self) -> impl Iterator<Item = Command> + 'a {
        let kept_set = |set: &Set| {
            let before = self.sets.get(&set.name);
            before.filter(|before| before.is_defined_as(set))
        };
        let is_kept = |chain: &Chain| {
            let before = self.chains.get(&chain.name);
            before.is_some_and(|before| before.hook == chain.hook)
        };
        let new_sets = wanted.sets.values();
        let new_sets = new_sets.filter(move |set| kept_set(set).is_none());
        let new_chains = wanted.chains.values();
        let new_chains = new_chains.filter(move |chain| !is_kept(chain));
        let elements = wanted.sets.values().flat_map(move |set| {
            let before = kept_set(set);
            let is_new = move |(key, verdict): &(&Key, &Option<Verdict>)| {
                before.and_then(|before| before.elements.get(*key)) != Some(*verdict)
            };
            let new = set.elements.iter().filter(is_new);
            new.map(|(key, verdict)| {
                let element = Element {
                    key: key.clone(),
                    verdict: verdict.clone(),
                };
                Command::AddElement(set.name.clone(), element)
            })
        });
        let changed = wanted.chains.values();
        let changed = changed.filter(|chain| self.chains.get(&chain.name) != Some(*chain));
        let rules = changed.flat_map(|chain| {
            let rules = chain.rules.iter();
            rules.map(|rule| Command::AddRule(chain.name.clone(), rule.clone()))
        });
        new_sets
            .map(|set| {
                let empty = Set::new(set.name.clone(), set.key.clone(), set.kind);
                Command::AddSet(Arc::new(empty))
            })
            .chain(new_chains.map(|chain| Command::AddChain(chain.name.clone(), chain.hook)))
            .chain(elements)
            .chain(rules)
    }

    /// Applies a command as the kernel does.
    ///
    /// Ignores a command for a missing set or chain, which the kernel refuses.
    pub fn apply(&mut self, command: &Command) {
        match command {
            Command::AddSet(set) => self.add_set(Set::clone(set)),
            Command::DeleteSet(name) => drop(self.sets.remove(name)),
            Command::AddElement(set, element) => {
                if let Some(set) = self.sets.get_mut(set) {
                    set.elements
                        .insert(element.key.clone(), element.verdict.clone());
                }
            }
            Command::DeleteElement(set, key) => {
                if let Some(set) = self.sets.get_mut(set) {
                    set.elements.remove(key);
                }
            }
            Command::AddChain(name, hook) => self.add_chain(Chain {
                name: name.clone(),
                hook: *hook,
                rules: Vec::new(),
            }),
            Command::DeleteChain(name) => drop(self.chains.remove(name)),
            Command::AddRule(chain, rule) => {
                if let Some(chain) = self.chains.get_mut(chain) {
                    chain.rules.push(rule.clone());
                }
            }
            Command::FlushChain(chain) => {
                if let Some(chain) = self.chains.get_mut(chain) {
                    chain.rules.clear();
                }
            }
        }
    }

    /// Returns the table as `nft list table` prints it, with this name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl fmt::Display + 'a {
        Named { table: self, name }
    }
}

struct Named<'a> {
    table: &'a Table,
    name: &'a str,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table inet {} {{", self.name)?;
        let mut is_first = true;
        let mut separate = |f: &mut fmt::Formatter<'_>| match std::mem::take(&mut is_first) {
            true => Ok(()),
            false => writeln!(f),
        };
        for set in self.table.sets.values() {
            separate(f)?;
            write_set(f, set)?;
        }
        for chain in self.table.chains.values() {
            separate(f)?;
            write_chain(f, chain)?;
        }
        writeln!(f, "}}")
    }
}

fn write_set(f: &mut fmt::Formatter<'_>, set: &Set) -> fmt::Result {
    let word = if set.kind.is_map() { "map" } else { "set" };
    writeln!(f, "\t{word} {} {{", set.name)?;
    for line in set.definition().to_string().split("; ") {
        writeln!(f, "\t\t{line}")?;
    }
    for (index, (key, verdict)) in set.elements.iter().enumerate() {
        f.write_str(if index == 0 {
            "\t\telements = { "
        } else {
            ",\n\t\t\t     "
        })?;
        write_element(f, key, verdict.as_ref())?;
    }
    if !set.elements.is_empty() {
        writeln!(f, " }}")?;
    }
    writeln!(f, "\t}}")
}

fn write_chain(f: &mut fmt::Formatter<'_>, chain: &Chain) -> fmt::Result {
    writeln!(f, "\tchain {} {{", chain.name)?;
    if let Some(hook) = chain.hook {
        writeln!(f, "\t\t{hook}")?;
    }
    for rule in &chain.rules {
        writeln!(f, "\t\t{rule}")?;
    }
    writeln!(f, "\t}}")
}
