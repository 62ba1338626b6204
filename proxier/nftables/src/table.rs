//! A table: chains and sets by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::command::{ARP, Command, INET};
use crate::key::Key;
use crate::rule::Rule;
use crate::set::Set;

/// A table of family `inet`, perhaps with a companion of family `arp`.
///
/// Both have the same name and are written in the same transactions, so they have one generation.
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
    /// The table of family `arp`, which has no companion itself.
    pub arp: Option<Box<Self>>,
}

// A static, because the commands of `Table::creation` borrow the table that they start from.
static EMPTY: Table = Table {
    sets: BTreeMap::new(),
    chains: BTreeMap::new(),
    arp: None,
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
    /// `type filter hook prerouting`, at this priority.
    Prerouting(i32),
    /// `type filter hook input`, at this priority.
    Input(i32),
    /// `type filter hook forward`, at this priority.
    Forward(i32),
    /// `type filter hook output`, at this priority.
    Output(i32),
    /// `type filter hook postrouting`, at this priority.
    Postrouting(i32),
    /// `type filter hook input priority filter` in a table of family `arp`: received ARP messages.
    ArpInput,
    /// `type filter hook output priority filter` in a table of family `arp`: sent ARP messages.
    ArpOutput,
    /// `type nat hook prerouting`, for the first packet of each connection.
    ///
    /// NAT chains of all programs run in the order of their priorities, but all at the place of the
    /// kernel's own NAT (`nf_nat_register_fn`): destination NAT at -100, source NAT at 100.
    NatPrerouting(i32),
    /// `type nat hook output`, as [`Hook::NatPrerouting`].
    NatOutput(i32),
    /// `type nat hook postrouting`, as [`Hook::NatPrerouting`].
    NatPostrouting(i32),
}

impl Hook {
    pub(crate) fn number(self) -> u32 {
        match self {
            // `NF_ARP_IN`, `NF_ARP_OUT`: the family has hooks of its own.
            Self::ArpInput | Self::Prerouting(_) | Self::NatPrerouting(_) => 0,
            Self::ArpOutput | Self::Input(_) => 1,
            Self::Forward(_) => 2,
            Self::Output(_) | Self::NatOutput(_) => 3,
            Self::Postrouting(_) | Self::NatPostrouting(_) => 4,
        }
    }

    pub(crate) fn priority(self) -> i32 {
        match self {
            Self::Prerouting(priority)
            | Self::Input(priority)
            | Self::Forward(priority)
            | Self::Output(priority)
            | Self::Postrouting(priority)
            | Self::NatPrerouting(priority)
            | Self::NatOutput(priority)
            | Self::NatPostrouting(priority) => priority,
            Self::ArpInput | Self::ArpOutput => 0,
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::NatPrerouting(_) | Self::NatOutput(_) | Self::NatPostrouting(_) => "nat",
            _ => "filter",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hook = match self {
            Self::Prerouting(_) | Self::NatPrerouting(_) => "prerouting",
            Self::Input(_) | Self::ArpInput => "input",
            Self::Forward(_) => "forward",
            Self::Output(_) | Self::NatOutput(_) | Self::ArpOutput => "output",
            Self::Postrouting(_) | Self::NatPostrouting(_) => "postrouting",
        };
        write!(f, "type {} hook {hook} priority ", self.kind())?;
        // nft names a priority by the nearest standard one, up to a distance of 10.
        match (hook, self.priority()) {
            (_, -300) => f.write_str("raw")?,
            (_, -150) => f.write_str("mangle")?,
            (_, 0) => f.write_str("filter")?,
            (_, 50) => f.write_str("security")?,
            ("prerouting", -110) => f.write_str("dstnat - 10")?,
            ("prerouting", -102) => f.write_str("dstnat - 2")?,
            ("prerouting", -101) => f.write_str("dstnat - 1")?,
            ("prerouting", -99) => f.write_str("dstnat + 1")?,
            ("postrouting", 99) => f.write_str("srcnat - 1")?,
            (_, other) => other.fmt(f)?,
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
        set.is_some_and(|set| set.contains(key))
    }

    /// Returns the commands that create the table, in an order that the kernel accepts.
    ///
    /// A large table has hundreds of thousands, so the iterator makes them one by one.
    pub fn creation(&self) -> impl Iterator<Item = Command> + '_ {
        EMPTY.additions(self).chain(EMPTY.arp_additions(self))
    }

    /// Returns the commands that change this table to `wanted`, in an order that the kernel accepts.
    ///
    /// A set or chain whose definition differs is deleted and added again. Costs a comparison of every
    /// element.
    pub fn difference(&self, wanted: &Self) -> Vec<Command> {
        let mut commands = self.removals(wanted);
        match (&self.arp, &wanted.arp) {
            (Some(_), None) => commands.push(Command::DeleteArpTable),
            (Some(arp), Some(wanted)) => {
                let removals = arp.removals(wanted).into_iter();
                commands.extend(removals.map(Command::in_arp));
            }
            (None, _) => {}
        }
        commands.extend(self.additions(wanted));
        commands.extend(self.arp_additions(wanted));
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
            // A changed chain loses all rules and gets its new ones later: single rules could be
            // replaced only by their handles, which this table does not know.
            if !chain.rules.is_empty() && after.is_none_or(|after| after != chain) {
                commands.push(Command::FlushChain(chain.name.clone()));
            }
        }
        for set in self.sets.values() {
            let after = wanted.sets.get(&set.name);
            let after = after.filter(|after| after.is_defined_as(set));
            // Deleted and added again: the kernel refuses other data for an existing key.
            let stale = set.missing_in(after).map(|(key, _)| key.clone());
            commands.extend(stale.map(|key| Command::DeleteElement(set.name.clone(), key)));
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
    pub(crate) fn additions<'a>(&'a self, wanted: &'a Self) -> impl Iterator<Item = Command> + 'a {
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
        let elements = wanted.sets.values();
        let elements = elements.flat_map(move |set| set.additions_to(kept_set(set)));
        let changed = wanted.chains.values();
        let changed = changed.filter(|chain| self.chains.get(&chain.name) != Some(*chain));
        let rules = changed.flat_map(|chain| {
            let rules = chain.rules.iter();
            rules.map(|rule| Command::AddRule(chain.name.clone(), rule.clone()))
        });
        new_sets
            .map(|set| Command::AddSet(Arc::new(set.without_elements())))
            .chain(new_chains.map(|chain| Command::AddChain(chain.name.clone(), chain.hook)))
            .chain(elements)
            .chain(rules)
    }

    /// Returns the commands that add what the companion lacks.
    fn arp_additions<'a>(&'a self, wanted: &'a Self) -> impl Iterator<Item = Command> + 'a {
        let is_new = self.arp.is_none() && wanted.arp.is_some();
        let before = self.arp.as_deref().unwrap_or(&EMPTY);
        let additions = wanted.arp.iter().flat_map(|arp| before.additions(arp));
        let table = is_new.then_some(Command::AddArpTable).into_iter();
        table.chain(additions.map(Command::in_arp))
    }

    /// Applies a command as the kernel does.
    ///
    /// Ignores a command for a missing set, chain or companion, which the kernel refuses.
    pub fn apply(&mut self, command: &Command) {
        match command {
            Command::AddSet(set) => self.add_set(Set::clone(set)),
            Command::DeleteSet(name) => drop(self.sets.remove(name)),
            Command::AddElement(set, element) => {
                if let Some(set) = self.sets.get_mut(set) {
                    set.insert(element.clone());
                }
            }
            Command::AddTarget(map, key, target) => {
                if let Some(map) = self.sets.get_mut(map) {
                    map.insert_target(key.clone(), *target);
                }
            }
            Command::DeleteElement(set, key) => {
                if let Some(set) = self.sets.get_mut(set) {
                    set.remove(key);
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
            Command::AddArpTable => drop(self.arp.get_or_insert_default()),
            Command::DeleteArpTable => self.arp = None,
            Command::InArpTable(command) => {
                if let Some(arp) = &mut self.arp {
                    arp.apply(command);
                }
            }
        }
    }

    /// Returns the table as `nft list table` prints it, with this name; after it, its companion.
    pub fn named<'a>(&'a self, name: &'a str) -> impl fmt::Display + 'a {
        Named {
            table: self,
            family: INET,
            name,
        }
    }
}

struct Named<'a> {
    table: &'a Table,
    family: &'static str,
    name: &'a str,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {} {{", self.family, self.name)?;
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
        writeln!(f, "}}")?;
        let Some(table) = &self.table.arp else {
            return Ok(());
        };
        let (family, name) = (ARP, self.name);
        Named {
            table,
            family,
            name,
        }
        .fmt(f)
    }
}

fn write_set(f: &mut fmt::Formatter<'_>, set: &Set) -> fmt::Result {
    let word = if set.kind.is_map() { "map" } else { "set" };
    writeln!(f, "\t{word} {} {{", set.name)?;
    for line in set.definition().to_string().split("; ") {
        writeln!(f, "\t\t{line}")?;
    }
    for (index, (key, data)) in set.missing_in(None).enumerate() {
        f.write_str(if index == 0 {
            "\t\telements = { "
        } else {
            ",\n\t\t\t     "
        })?;
        write!(f, "{key}{data}")?;
    }
    if !set.is_empty() {
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
