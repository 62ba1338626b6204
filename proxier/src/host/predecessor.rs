//! Finds and removes the rules and ipsets that kube-proxy left on this node, in any of its modes.
//!
//! | kind | read | removed |
//! |---|---|---|
//! | chains in the tables of iptables-nft, and the rules to them | nf_tables | in one transaction |
//! | the tables `kube-proxy` of the nftables mode | nf_tables | in the same transaction |
//! | ipsets | ipset's netlink | one by one, after the last rule that uses them |
//! | chains in the tables of iptables-legacy | not possible | by [a command](legacy) that the log prints |
//!
//! Virtual servers and the addresses of `kube-ipvs0` are not leftovers: `run` adopts those of its plan.
//!
//! **Leftovers are removed only if kube-proxy does not run.** A container cannot be certain of that, so
//! each of three signs postpones the removal: a process, a listener at kube-proxy's ports ([`signs`]), and
//! a write of its rules within its sync period (the daemon looks twice).

use netlink::Result;

use crate::cluster::model::Family;
use crate::host::ipset::{IpSet, IpSetClient};
use crate::host::{Belongings, ChainName, ProgramRules, RulesRemover, TableName};

pub(crate) mod legacy;
mod names;
pub(crate) mod nftables_mode;
pub(crate) mod signs;

/// The user of the chain KUBE-MARK-MASQ, which decides whether the chain is a leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkChainUse {
    /// Only kube-proxy needs it.
    KubeProxy,
    /// This program maintains it for plugins (`--compat-chains`).
    Plugins,
}

/// The rules and ipsets that kube-proxy left, as last found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub(crate) rules: ProgramRules,
    /// Its ipsets, sorted by name.
    pub(crate) sets: Vec<IpSet>,
}

impl Leftovers {
    /// Returns whether nothing can be removed.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.sets.is_empty()
    }

    /// Returns one line for each object that a removal deletes.
    pub(crate) fn lines(&self) -> Vec<String> {
        let sets = self.sets.iter().map(ToString::to_string);
        self.rules.lines().chain(sets).collect()
    }

    /// Returns whether kube-proxy's iptables or nftables mode wrote them. These modes do not use IPVS.
    pub(crate) fn are_of_other_modes(&self) -> bool {
        let mut chains = self.rules.chains.iter();
        !self.rules.tables.is_empty() || chains.any(|chain| chain.name == names::CANARY)
    }

    /// Returns whether rules use any of the sets.
    pub(crate) fn has_sets_in_use(&self) -> bool {
        self.used_sets().next().is_some()
    }

    /// Returns the families whose ipsets rules use.
    pub(crate) fn families_in_use(&self) -> impl Iterator<Item = Family> + '_ {
        self.used_sets().map(|set| names::family_of_set(&set.name))
    }

    /// Returns the sets that rules use.
    pub(crate) fn used_sets(&self) -> impl Iterator<Item = &IpSet> {
        self.sets.iter().filter(|set| set.references > 0)
    }
}

/// Finds and removes the leftovers in one network namespace.
#[derive(Debug)]
pub(crate) struct LeftoverClient {
    rules: RulesRemover,
    sets: IpSetClient,
    mark_chain: MarkChainUse,
}

impl LeftoverClient {
    /// Opens the sockets.
    ///
    /// # Errors
    /// [`netlink::Error::Socket`].
    pub(crate) fn open(mark_chain: MarkChainUse) -> Result<Self> {
        Ok(Self {
            rules: RulesRemover::open()?,
            sets: IpSetClient::open()?,
            mark_chain,
        })
    }

    /// Finds the leftovers.
    ///
    /// # Errors
    /// Those of the sockets and of the kernel.
    pub(crate) fn find(&mut self) -> Result<Leftovers> {
        // An old kubelet maintains the chain KUBE-MARK-MASQ too.
        let chains = crate::host::list_chains()?;
        let is_of_kubelet = |chain: &ChainName| chain.name == names::KUBELET_CHAIN;
        let keeps_mark_chain =
            self.mark_chain == MarkChainUse::Plugins || chains.iter().any(is_of_kubelet);
        Ok(Leftovers {
            rules: self.rules.find(&KubeProxy { keeps_mark_chain })?,
            sets: self.sets.list(names::is_set)?,
        })
    }

    /// Removes the rules of `leftovers`, and those ipsets that no rule uses.
    ///
    /// The kernel counts the uses of removed rules a little later, so a second call may be needed.
    ///
    /// # Errors
    /// Those of the sockets and of the kernel. If the rules were refused, no set was destroyed.
    pub(crate) fn remove(&mut self, leftovers: &Leftovers) -> Result<()> {
        self.rules.remove(&leftovers.rules)?;
        // Listed again, because the removal of rules has lowered the counts of uses.
        let unused = self.sets.list(names::is_set)?;
        let unused: Vec<IpSet> = (unused.into_iter())
            .filter(|set| set.references == 0)
            .collect();
        self.sets.destroy(&unused)?;
        Ok(())
    }
}

/// kube-proxy's belongings in nf_tables.
struct KubeProxy {
    keeps_mark_chain: bool,
}

impl Belongings for KubeProxy {
    fn has_chain(&self, chain: &ChainName) -> bool {
        let is_kept = self.keeps_mark_chain && chain.name == names::MARK_CHAIN;
        // iptables-nft has its tables in these families. A chain of the same name elsewhere is another
        // program's.
        let is_iptables = ["ip", "ip6"].contains(&chain.family);
        is_iptables && !is_kept && names::is_chain(&chain.table, &chain.name)
    }

    fn has_table(&self, table: &TableName) -> bool {
        names::is_table(table.family, &table.name)
    }
}
