//! The chain KUBE-MARK-MASQ in the tables `nat` of iptables.
//!
//! Kubelets before 1.28 and kube-proxy create this chain, and plugins name it: with portmap's
//! `externalSetMarkChain: KUBE-MARK-MASQ`, a rule jumps to it before it translates a hostPort. Without
//! the chain, the plugin fails, and the Pod does not start. The chain sets the masquerade bit.
//!
//! The chain is in the form that iptables-nft writes, because iptables cannot read a table with other
//! expressions. Netlink does not reach the tables of iptables-legacy.

use std::collections::BTreeSet;

use netlink::Error;
use netlink::batch::Batch;
use netlink::transport::{Transport, protocols};
use netlink::{NLM_F_APPEND, NLM_F_CREATE};
use rustix::io::Errno;

use super::iptables_legacy::{LegacyTable, legacy_tables};
use super::listing::{self, ChainName, commit_all, header, refused};
use super::xt;
use nftables::raw::{commit, message_type};
use nftables::sys::*;

/// The name of the chain.
pub(crate) const MARK_CHAIN: &str = "KUBE-MARK-MASQ";

/// The table of the chain, in the families `ip` and `ip6`.
const TABLE: &str = "nat";

/// A socket that maintains the chain in both families.
#[derive(Debug)]
pub struct MarkChains {
    transport: Transport,
    mark: u32,
}

/// The result of [`MarkChains::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkReport {
    /// The chains that got our rule.
    pub written: Vec<ChainName>,
    /// Errors, each with its chain. The next [`MarkChains::apply`] may succeed.
    pub failures: BTreeSet<String>,
    /// The commands for tables of iptables-legacy that are in use.
    pub legacy_commands: BTreeSet<String>,
}

/// The result of [`MarkChains::remove`] for one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The chain had no rule of ours.
    NotOurs,
    /// Our rule was deleted, and the chain too if it had no other rule.
    Removed,
    /// A rule of another program jumps to the chain, so it stays with our rule.
    InUse,
}

/// Returns the chain of each family.
fn chains() -> [ChainName; 2] {
    ["ip", "ip6"].map(|family| ChainName {
        family,
        table: TABLE.into(),
        name: MARK_CHAIN.into(),
    })
}

/// The rules of a chain.
#[derive(Debug, Default)]
struct MarkChainRules {
    /// The handle of our rule for the present mark.
    ours: Option<u64>,
    /// The handles of our rules for other marks.
    stale: Vec<u64>,
    /// The number of rules of other programs.
    others: usize,
}

impl MarkChainRules {
    fn of_ours(&self) -> impl Iterator<Item = u64> + '_ {
        self.stale.iter().copied().chain(self.ours)
    }
}

impl MarkChains {
    /// Opens a socket for chains that set the bits of `mark`.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(mark: u32) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
            mark,
        })
    }

    /// Creates the chains that are missing, and adds our rule to those without rules.
    ///
    /// A chain with rules of another program stays as it is: a kubelet or kube-proxy wrote it. Costs two
    /// requests for each family if nothing is missing.
    pub fn apply(&mut self) -> MarkReport {
        let mut report = MarkReport {
            legacy_commands: legacy_commands(self.mark),
            ..MarkReport::default()
        };
        for chain in chains() {
            match self.apply_to(&chain) {
                Ok(true) => report.written.push(chain),
                Ok(false) => {}
                Err(error) => _ = report.failures.insert(format!("{chain}: {error}")),
            }
        }
        report
    }

    /// Returns whether the chain got our rule.
    fn apply_to(&mut self, chain: &ChainName) -> Result<bool, Error> {
        let rules = self.rules(chain)?;
        let is_satisfied = |rules: &MarkChainRules| rules.ours.is_some() || rules.others > 0;
        let is_new = !rules.as_ref().is_some_and(is_satisfied);
        let stale = rules.map(|rules| rules.stale).unwrap_or_default();
        if !is_new && stale.is_empty() {
            return Ok(false);
        }
        let mark = self.mark;
        commit_all(&mut self.transport, "writing it", |batch| {
            for handle in stale {
                chain.delete_rule(batch, Some(handle))?;
            }
            if is_new {
                create(batch, chain, mark)?;
            }
            Ok(())
        })?;
        Ok(is_new)
    }

    /// Returns the chains that have a rule of ours.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub fn with_rules(&mut self) -> Result<Vec<ChainName>, Error> {
        let mut found = Vec::new();
        for chain in chains() {
            let rules = self.rules(&chain)?.unwrap_or_default();
            found.extend(rules.of_ours().next().map(|_| chain));
        }
        Ok(found)
    }

    /// Deletes our rules, and the chains that have no other rule.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub fn remove(&mut self) -> Result<Vec<(ChainName, Removal)>, Error> {
        let mut removals = Vec::new();
        for chain in chains() {
            let removal = self.remove_from(&chain)?;
            removals.push((chain, removal));
        }
        Ok(removals)
    }

    fn remove_from(&mut self, chain: &ChainName) -> Result<Removal, Error> {
        let rules = self.rules(chain)?.unwrap_or_default();
        if rules.of_ours().next().is_none() {
            return Ok(Removal::NotOurs);
        }
        let refusal = commit(&mut self.transport, |batch| {
            for handle in rules.of_ours() {
                chain.delete_rule(batch, Some(handle))?;
            }
            if rules.others == 0 {
                chain.delete(batch)?;
            }
            Ok(())
        })?;
        match refusal {
            None => Ok(Removal::Removed),
            Some(refusal) if refusal.errno == Errno::BUSY => Ok(Removal::InUse),
            Some(refusal) => Err(refused(&format!("deleting {chain}"), refusal)),
        }
    }

    /// Reads the rules of a chain; `None` if it does not exist, or if the kernel has no nf_tables.
    fn rules(&mut self, chain: &ChainName) -> Result<Option<MarkChainRules>, Error> {
        let exists = self.transport.query(
            message_type(NFT_MSG_GETCHAIN),
            "looking for the chain",
            |writer| chain.write_itself(writer),
            |_| Ok(()),
        );
        match exists {
            Err(error) if error.errno() == Some(Errno::NOENT) || error.is_invalid() => {
                return Ok(None);
            }
            other => other?,
        }
        let ours = comment(self.mark);
        let mut rules = MarkChainRules::default();
        self.transport.dump(
            message_type(NFT_MSG_GETRULE),
            "reading its rules",
            |writer| chain.write(writer),
            |rules| *rules = MarkChainRules::default(),
            &mut rules,
            |rules, message| {
                let found = found_comment(message.payload);
                match listing::handle(message.payload)? {
                    Some(handle) if found == Some(ours.as_bytes()) => rules.ours = Some(handle),
                    Some(handle) if found.is_some() => rules.stale.push(handle),
                    _ => rules.others += 1,
                }
                Ok(())
            },
        )?;
        Ok(Some(rules))
    }
}

/// Adds messages that create the chain, with its table, and append our rule.
fn create(batch: &mut Batch, chain: &ChainName, mark: u32) -> Result<(), Error> {
    // Without `NLM_F_EXCL`, the kernel accepts a table and a chain that exist.
    batch.push(message_type(NFT_MSG_NEWTABLE), NLM_F_CREATE, |writer| {
        header(writer, chain.family);
        writer.string(NFTA_TABLE_NAME, TABLE);
    })?;
    let kind = message_type(NFT_MSG_NEWCHAIN);
    batch.push(kind, NLM_F_CREATE, |writer| chain.write_itself(writer))?;
    // Created with the chain in one transaction: a plugin never meets a chain that sets nothing.
    let flags = NLM_F_CREATE | NLM_F_APPEND;
    batch.push(message_type(NFT_MSG_NEWRULE), flags, |writer| {
        chain.write(writer);
        writer.nested(NFTA_RULE_EXPRESSIONS, |expressions| {
            // `-m comment --comment COMMENT -j MARK --or-mark MARK`
            xt::write_comment(expressions, &comment(mark));
            // `struct xt_mark_tginfo2` of linux/netfilter/xt_mark.h: the bits to set, then the bits to clear
            // before.
            let bits = mark.to_ne_bytes();
            xt::write_target(expressions, "MARK", 2, &[bits, bits].concat());
        });
    })
}

/// The start of the comments of our rules.
const COMMENT: &str = "ipvs-proxier sets mark ";

fn comment(mark: u32) -> String {
    format!("{COMMENT}{mark:#x}")
}

/// Returns the comment of a rule of ours.
///
/// A comment has two places: iptables-restore moves it from an expression to the userdata. So it is searched
/// as bytes, to the NUL at its end: the comment of the mark 0x4 begins that of 0x4000.
fn found_comment(rule: &[u8]) -> Option<&[u8]> {
    let start = memchr::memmem::find(rule, COMMENT.as_bytes())?;
    let rest = &rule[start..];
    let end = memchr::memchr(0, rest).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Returns the commands that create the chain in the legacy tables `nat` that are in use. They wait for other
/// programs that hold the lock (`-w`).
fn legacy_commands(mark: u32) -> BTreeSet<String> {
    let in_use = legacy_tables()
        .into_iter()
        .filter(|table| table.name == TABLE);
    in_use
        .map(|LegacyTable { program, .. }| {
            format!(
                "{program} -w -t {TABLE} -N {MARK_CHAIN} && \
                 {program} -w -t {TABLE} -A {MARK_CHAIN} -j MARK --or-mark {mark:#x}"
            )
        })
        .collect()
}
