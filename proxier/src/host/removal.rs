//! Removes the rules, chains and tables that another program left in nf_tables when it ended.
//!
//! ```text
//!   base chain ──rule──▶ a chain of the program ──▶ another of its chains
//!              ▲ deleted by its handle    ▲ emptied and deleted
//! ```
//!
//! The removal is one transaction, so each packet passes all of the program's rules or none. In a table that is
//! deleted whole, the last packets may find verdict maps already empty
//! ([`RulesClient::delete`](nftables::RulesClient::delete)): then kube-proxy's rules of the nftables mode decide
//! nothing. iptables-nft keeps its chains in nf_tables, so they are removed too. A chain to which a third
//! program jumps stays, and so do the chains to which it jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use netlink::Error;
use netlink::attr::find;
use netlink::transport::{Transport, protocols};

use super::listing::{self, ChainName, chain_name, commit_all, dump_chains, header, text};
use nftables::raw::{contents, message_type};
use nftables::sys::*;

/// The name of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TableName {
    /// Its family, as nft spells it.
    pub(crate) family: &'static str,
    /// Its own name.
    pub(crate) name: String,
}

/// A rule that jumps from a chain of the kernel's hooks to a chain of the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Jump {
    from: ChainName,
    handle: u64,
    to: String,
}

/// The rules, chains and tables of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramRules {
    /// Tables that the program has for itself.
    pub(crate) tables: BTreeSet<TableName>,
    /// Its chains in tables that it shares.
    pub(crate) chains: BTreeSet<ChainName>,
    /// The rules to its chains.
    jumps: BTreeSet<Jump>,
    /// Its chains that stay, because a third program jumps to them.
    pub(crate) used: BTreeSet<ChainName>,
    /// The newest rule of the program in each table. It differs after the program wrote any rule: the
    /// kernel counts the handles of a table upwards.
    newest: BTreeMap<TableName, u64>,
}

impl ProgramRules {
    /// Returns whether nothing can be removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.chains.is_empty()
    }

    /// Returns one line for each object that a removal deletes.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let jumps = self.jumps.iter().map(ToString::to_string);
        let chains = self.chains.iter().map(ToString::to_string);
        let tables = self.tables.iter().map(ToString::to_string);
        jumps.chain(chains).chain(tables)
    }
}

/// The chains and tables that belong to a program.
pub(crate) trait Belongings {
    /// Returns whether the chain is the program's.
    fn has_chain(&self, chain: &ChainName) -> bool;
    /// Returns whether the whole table is the program's.
    fn has_table(&self, table: &TableName) -> bool;
}

/// A chain in the kernel.
#[derive(Debug)]
struct FoundChain {
    name: ChainName,
    /// Whether the kernel calls the chain at a hook.
    is_base: bool,
}

/// A rule in the kernel.
#[derive(Debug)]
struct FoundRule {
    chain: ChainName,
    handle: u64,
    /// The chain to which the rule jumps, if any.
    target: Option<String>,
}

/// A socket that finds and removes the rules of other programs in its network namespace.
#[derive(Debug)]
pub(crate) struct RulesRemover {
    transport: Transport,
}

impl RulesRemover {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub(crate) fn open() -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
        })
    }

    /// Finds the rules of a program. A kernel without nf_tables has none.
    ///
    /// Costs a dump of all chains, and one of the rules of each table in which the program has any.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub(crate) fn find(&mut self, program: &impl Belongings) -> Result<ProgramRules, Error> {
        let chains = dump_chains(&mut self.transport, |payload| {
            Ok(Some(FoundChain {
                name: chain_name(payload)?,
                is_base: find(contents(payload), NFTA_CHAIN_HOOK)?.is_some(),
            }))
        })?;
        let is_theirs =
            |chain: &ChainName| program.has_table(&chain.table()) || program.has_chain(chain);
        let tables: BTreeSet<TableName> = chains
            .iter()
            .filter(|chain| is_theirs(&chain.name))
            .map(|chain| chain.name.table())
            .collect();
        let mut rules = Vec::new();
        // A jump cannot leave its table, so no rule of another table concerns the program's chains.
        for table in &tables {
            rules.extend(self.rules(table)?);
        }
        Ok(select(program, &chains, &rules))
    }

    fn rules(&mut self, table: &TableName) -> Result<Vec<FoundRule>, Error> {
        self.transport.list(
            message_type(NFT_MSG_GETRULE),
            "reading the rules of another program",
            |writer| {
                header(writer, table.family);
                writer.string(NFTA_RULE_TABLE, &table.name);
            },
            |payload| read_rule(table, payload),
        )
    }

    /// Removes what [`RulesRemover::find`] found, in one transaction.
    ///
    /// # Errors
    /// Those of the socket and of the kernel; then nothing was removed. If a program changed one of the
    /// rules since they were found, the kernel refuses.
    pub(crate) fn remove(&mut self, found: &ProgramRules) -> Result<(), Error> {
        if found.is_empty() {
            return Ok(());
        }
        let doing = "removing the rules of another program";
        commit_all(&mut self.transport, doing, |batch| {
            for jump in &found.jumps {
                jump.from.delete_rule(batch, Some(jump.handle))?;
            }
            // All chains are emptied before the first is deleted: they jump to each other.
            for chain in &found.chains {
                chain.delete_rule(batch, None)?;
            }
            for chain in &found.chains {
                chain.delete(batch)?;
            }
            for table in &found.tables {
                batch.push(message_type(NFT_MSG_DELTABLE), 0, |writer| {
                    header(writer, table.family);
                    writer.string(NFTA_TABLE_NAME, &table.name);
                })?;
            }
            Ok(())
        })
    }
}

/// Selects what is the program's among all `chains` and the `rules` of its tables.
fn select(program: &impl Belongings, chains: &[FoundChain], rules: &[FoundRule]) -> ProgramRules {
    let mut found = ProgramRules::default();
    for chain in chains {
        let table = chain.name.table();
        if program.has_table(&table) {
            found.tables.insert(table);
        } else if !chain.is_base && program.has_chain(&chain.name) {
            // A base chain stays, because other programs have rules in it.
            found.chains.insert(chain.name.clone());
        }
    }
    let base: BTreeSet<&ChainName> = chains
        .iter()
        .filter(|chain| chain.is_base)
        .map(|chain| &chain.name)
        .collect();
    for rule in rules {
        if found.chains.contains(&rule.chain) || found.tables.contains(&rule.chain.table()) {
            let newest = found.newest.entry(rule.chain.table()).or_default();
            *newest = rule.handle.max(*newest);
        }
    }
    // A rule in a chain that is neither the program's nor at a hook is a third program's. So is each
    // rule of a chain that stays.
    loop {
        let is_used =
            |rule: &&FoundRule| !base.contains(&rule.chain) && !found.chains.contains(&rule.chain);
        let used: Vec<ChainName> = rules
            .iter()
            .filter(is_used)
            .filter_map(FoundRule::target)
            .filter(|target| found.chains.contains(target))
            .collect();
        if used.is_empty() {
            break;
        }
        for chain in used {
            found.chains.remove(&chain);
            found.used.insert(chain);
        }
    }
    let jumps = rules.iter().filter(|rule| base.contains(&rule.chain));
    for rule in jumps {
        if let Some(target) = rule.target().filter(|to| found.chains.contains(to)) {
            found.jumps.insert(Jump {
                from: rule.chain.clone(),
                handle: rule.handle,
                to: target.name,
            });
        }
    }
    found
}

impl FoundRule {
    fn target(&self) -> Option<ChainName> {
        Some(ChainName {
            family: self.chain.family,
            table: self.chain.table.clone(),
            name: self.target.clone()?,
        })
    }
}

fn read_rule(table: &TableName, payload: &[u8]) -> Result<Option<FoundRule>, Error> {
    let (mut chain, mut target) = (None, None);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_RULE_CHAIN => chain = Some(text(attribute.value)),
            NFTA_RULE_EXPRESSIONS => {
                for expression in attribute.nested() {
                    target = jump_target(expression?.value)?.or(target);
                }
            }
            _ => {}
        }
    }
    let (Some(chain), Some(handle)) = (chain, listing::handle(payload)?) else {
        return Ok(None);
    };
    let chain = ChainName {
        family: table.family,
        table: table.name.clone(),
        name: chain,
    };
    Ok(Some(FoundRule {
        chain,
        handle,
        target,
    }))
}

/// Returns the chain to which an expression jumps; `None` for other expressions.
fn jump_target(expression: &[u8]) -> Result<Option<String>, Error> {
    let attributes = || netlink::attr::attributes(expression);
    let Some(data) = find(attributes(), NFTA_EXPR_DATA)? else {
        return Ok(None);
    };
    match find(attributes(), NFTA_EXPR_NAME)? {
        Some(name) if name.string()? == "immediate" => {}
        _ => return Ok(None),
    }
    let Some(immediate) = find(data.nested(), NFTA_IMMEDIATE_DATA)? else {
        return Ok(None);
    };
    let Some(verdict) = find(immediate.nested(), NFTA_DATA_VERDICT)? else {
        return Ok(None);
    };
    let chain = find(verdict.nested(), NFTA_VERDICT_CHAIN)?;
    Ok(chain.map(|chain| text(chain.value)))
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} {}", self.family, self.name)
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rule {} (jump {}) of {}",
            self.handle, self.to, self.from
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sample;

    impl Belongings for Sample {
        fn has_chain(&self, chain: &ChainName) -> bool {
            chain.name.starts_with("OLD-")
        }

        fn has_table(&self, table: &TableName) -> bool {
            table.name == "old"
        }
    }

    fn name(table: &str, chain: &str) -> ChainName {
        ChainName {
            family: "ip",
            table: table.into(),
            name: chain.into(),
        }
    }

    /// Selects among chains (a capital name is at a hook) and rules `(chain, handle, target)` of `nat`.
    fn selected(chains: &[&str], rules: &[(&str, u64, &str)]) -> ProgramRules {
        let chains: Vec<FoundChain> = chains
            .iter()
            .map(|chain| FoundChain {
                name: name("nat", chain),
                is_base: chain.ends_with("ROUTING"),
            })
            .collect();
        let rules: Vec<FoundRule> = rules
            .iter()
            .map(|&(chain, handle, target)| FoundRule {
                chain: name("nat", chain),
                handle,
                target: Some(target.to_owned()).filter(|target| !target.is_empty()),
            })
            .collect();
        select(&Sample, &chains, &rules)
    }

    fn lines(found: &ProgramRules) -> Vec<String> {
        found.lines().collect()
    }

    #[test]
    fn chains_and_the_rules_to_them_are_selected() {
        let chains = ["PREROUTING", "OLD-A", "OLD-B", "CNI-X"];
        let rules = [
            ("PREROUTING", 3, "OLD-A"),
            ("PREROUTING", 4, "CNI-X"),
            ("OLD-A", 5, "OLD-B"),
            ("CNI-X", 6, ""),
        ];
        assert_eq!(
            lines(&selected(&chains, &rules)),
            [
                "rule 3 (jump OLD-A) of chain PREROUTING of table ip nat",
                "chain OLD-A of table ip nat",
                "chain OLD-B of table ip nat",
            ]
        );
    }

    #[test]
    fn a_chain_that_a_third_program_uses_stays_with_the_chains_that_it_needs() {
        let chains = ["POSTROUTING", "OLD-A", "OLD-MARK", "OLD-DEEP", "CNI-X"];
        let rules = [
            ("POSTROUTING", 3, "OLD-A"),
            ("OLD-A", 4, "OLD-MARK"),
            ("CNI-X", 5, "OLD-MARK"),
            ("OLD-MARK", 6, "OLD-DEEP"),
        ];
        let found = selected(&chains, &rules);
        assert_eq!(
            lines(&found),
            [
                "rule 3 (jump OLD-A) of chain POSTROUTING of table ip nat",
                "chain OLD-A of table ip nat",
            ]
        );
        let used = ["OLD-DEEP", "OLD-MARK"].map(|chain| name("nat", chain));
        assert_eq!(found.used, used.into());
    }

    #[test]
    fn a_rewritten_chain_differs_though_it_looks_the_same() {
        let chains = ["POSTROUTING", "OLD-A"];
        let of = |handle| {
            selected(
                &chains,
                &[("POSTROUTING", 3, "OLD-A"), ("OLD-A", handle, "")],
            )
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        // Rules of other programs do not count.
        let more = [
            ("POSTROUTING", 3, "OLD-A"),
            ("OLD-A", 7, ""),
            ("POSTROUTING", 9, ""),
        ];
        assert_eq!(of(7), selected(&chains, &more));
    }

    #[test]
    fn whole_tables_are_selected_at_once() {
        let chains = [FoundChain {
            name: name("old", "services"),
            is_base: false,
        }];
        let found = select(&Sample, &chains, &[]);
        assert_eq!(lines(&found), ["table ip old"]);
        assert!(!found.is_empty());
    }
}
