//! The chain KUBE-MARK-MASQ in the tables `nat` of iptables.
//!
//! Kubelets before 1.28 and kube-proxy create this chain, and plugins name it: with portmap's
//! `externalSetMarkChain: KUBE-MARK-MASQ`, a rule jumps to it before it translates a hostPort. Without
//! the chain, the plugin fails, and the Pod does not start. The chain sets the masquerade bit.
//!
//! The chain is in the form that iptables-nft writes, because iptables cannot read a table with other
//! expressions. Netlink does not reach the tables of iptables-legacy.

use std::collections::BTreeSet;
use std::fmt;

use netlink::Error;
use netlink::attr::Writer;
use netlink::batch::Batch;
use netlink::transport::{Transport, protocols};
use netlink::{NLM_F_APPEND, NLM_F_CREATE};
use rustix::io::Errno;

use super::iptables_legacy::{LegacyTable, legacy_tables};
use super::listing::family_name;
use nftables::raw::{commit, contents, message_type};
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
    pub written: Vec<MarkChain>,
    /// Errors, each with its chain. The next [`MarkChains::apply`] may succeed.
    pub failures: BTreeSet<String>,
    /// The commands for tables of iptables-legacy that are in use.
    pub legacy_commands: BTreeSet<String>,
}

/// The chain in the table of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkChain(u8);

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

const CHAINS: [MarkChain; 2] = [MarkChain(NFPROTO_IPV4), MarkChain(NFPROTO_IPV6)];

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
        for chain in CHAINS {
            match self.apply_to(chain) {
                Ok(true) => report.written.push(chain),
                Ok(false) => {}
                Err(error) => _ = report.failures.insert(format!("{chain}: {error}")),
            }
        }
        report
    }

    /// Returns whether the chain got our rule.
    fn apply_to(&mut self, chain: MarkChain) -> Result<bool, Error> {
        let rules = self.rules(chain)?;
        let is_satisfied = |rules: &MarkChainRules| rules.ours.is_some() || rules.others > 0;
        let is_new = !rules.as_ref().is_some_and(is_satisfied);
        let stale = rules.map(|rules| rules.stale).unwrap_or_default();
        if !is_new && stale.is_empty() {
            return Ok(false);
        }
        let mark = self.mark;
        let refused = commit(&mut self.transport, |batch| {
            for handle in &stale {
                delete_rule(batch, chain, *handle)?;
            }
            if is_new {
                create(batch, chain, mark)?;
            }
            Ok(())
        })?;
        refused.map_or(Ok(is_new), |refusal| {
            Err(Error::Refused {
                doing: "writing it".into(),
                refusal,
            })
        })
    }

    /// Returns the chains that have a rule of ours.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub fn with_rules(&mut self) -> Result<Vec<MarkChain>, Error> {
        let mut found = Vec::new();
        for chain in CHAINS {
            let rules = self.rules(chain)?.unwrap_or_default();
            found.extend(rules.of_ours().next().map(|_| chain));
        }
        Ok(found)
    }

    /// Deletes our rules, and the chains that have no other rule.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub fn remove(&mut self) -> Result<Vec<(MarkChain, Removal)>, Error> {
        let removals = CHAINS.map(|chain| Ok((chain, self.remove_from(chain)?)));
        removals.into_iter().collect()
    }

    fn remove_from(&mut self, chain: MarkChain) -> Result<Removal, Error> {
        let rules = self.rules(chain)?.unwrap_or_default();
        if rules.of_ours().next().is_none() {
            return Ok(Removal::NotOurs);
        }
        let refused = commit(&mut self.transport, |batch| {
            for handle in rules.of_ours() {
                delete_rule(batch, chain, handle)?;
            }
            if rules.others == 0 {
                batch.push(message_type(NFT_MSG_DELCHAIN), 0, |writer| {
                    chain.header(writer);
                    writer.string(NFTA_CHAIN_TABLE, TABLE);
                    writer.string(NFTA_CHAIN_NAME, MARK_CHAIN);
                })?;
            }
            Ok(())
        })?;
        match refused {
            None => Ok(Removal::Removed),
            Some(refusal) if refusal.errno == Errno::BUSY => Ok(Removal::InUse),
            Some(refusal) => Err(Error::Refused {
                doing: format!("deleting {chain}"),
                refusal,
            }),
        }
    }

    /// Reads the rules of a chain; `None` if it does not exist.
    fn rules(&mut self, chain: MarkChain) -> Result<Option<MarkChainRules>, Error> {
        let exists = self.transport.query(
            message_type(NFT_MSG_GETCHAIN),
            "looking for the chain",
            |writer| {
                chain.header(writer);
                writer.string(NFTA_CHAIN_TABLE, TABLE);
                writer.string(NFTA_CHAIN_NAME, MARK_CHAIN);
            },
            |_| Ok(()),
        );
        match exists {
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
            other => other?,
        }
        let ours = comment(self.mark);
        let mut rules = MarkChainRules::default();
        self.transport.dump(
            message_type(NFT_MSG_GETRULE),
            "reading its rules",
            |writer| chain.of_rule(writer),
            |rules| *rules = MarkChainRules::default(),
            &mut rules,
            |rules, message| {
                let mut handle = None;
                for attribute in contents(message.payload) {
                    let attribute = attribute?;
                    if attribute.kind == NFTA_RULE_HANDLE {
                        handle = Some(u64::from_be_bytes(attribute.array()?));
                    }
                }
                let found = found_comment(message.payload);
                match handle {
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
fn create(batch: &mut Batch, chain: MarkChain, mark: u32) -> Result<(), Error> {
    // Without `NLM_F_EXCL`, the kernel accepts a table and a chain that exist.
    batch.push(message_type(NFT_MSG_NEWTABLE), NLM_F_CREATE, |writer| {
        chain.header(writer);
        writer.string(NFTA_TABLE_NAME, TABLE);
    })?;
    batch.push(message_type(NFT_MSG_NEWCHAIN), NLM_F_CREATE, |writer| {
        chain.header(writer);
        writer.string(NFTA_CHAIN_TABLE, TABLE);
        writer.string(NFTA_CHAIN_NAME, MARK_CHAIN);
    })?;
    // Created with the chain in one transaction: a plugin never meets a chain that sets nothing.
    let flags = NLM_F_CREATE | NLM_F_APPEND;
    batch.push(message_type(NFT_MSG_NEWRULE), flags, |writer| {
        chain.of_rule(writer);
        writer.nested(NFTA_RULE_EXPRESSIONS, |expressions| {
            write_rule(expressions, mark);
        });
    })
}

fn delete_rule(batch: &mut Batch, chain: MarkChain, handle: u64) -> Result<(), Error> {
    batch.push(message_type(NFT_MSG_DELRULE), 0, |writer| {
        chain.of_rule(writer);
        writer.bytes(NFTA_RULE_HANDLE, &handle.to_be_bytes());
    })
}

/// Writes `-m comment --comment COMMENT -j MARK --or-mark MARK`.
fn write_rule(expressions: &mut Writer<'_>, mark: u32) {
    let mut info = comment(mark).into_bytes();
    info.resize(XT_MAX_COMMENT_LEN, 0);
    expression(expressions, "match", |data| {
        data.string(NFTA_MATCH_NAME, "comment");
        data.u32_be(NFTA_MATCH_REV, 0);
        data.bytes(NFTA_MATCH_INFO, &info);
    });
    // `struct xt_mark_tginfo2` of linux/netfilter/xt_mark.h: the bits to set, then the bits to clear
    // before.
    let bits = mark.to_ne_bytes();
    expression(expressions, "target", |data| {
        data.string(NFTA_TARGET_NAME, "MARK");
        data.u32_be(NFTA_TARGET_REV, 2);
        data.bytes(NFTA_TARGET_INFO, &[bits, bits].concat());
    });
}

fn expression(list: &mut Writer<'_>, name: &str, data: impl FnOnce(&mut Writer<'_>)) {
    list.nested(NFTA_LIST_ELEM, |expression| {
        expression.string(NFTA_EXPR_NAME, name);
        expression.nested(NFTA_EXPR_DATA, data);
    });
}

/// `XT_MAX_COMMENT_LEN` of linux/netfilter/xt_comment.h.
const XT_MAX_COMMENT_LEN: usize = 256;

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

impl MarkChain {
    fn header(self, writer: &mut Writer<'_>) {
        writer.header(&[self.0, 0, 0, 0]);
    }

    /// Writes the header of a message about the chain's rules, and the chain.
    fn of_rule(self, writer: &mut Writer<'_>) {
        self.header(writer);
        writer.string(NFTA_RULE_TABLE, TABLE);
        writer.string(NFTA_RULE_CHAIN, MARK_CHAIN);
    }
}

impl fmt::Display for MarkChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = family_name(self.0);
        write!(f, "chain {MARK_CHAIN} of table {family} {TABLE}")
    }
}
