//! Our rules in the chains of other programs.
//!
//! A packet passes the chains of all tables, and a drop in any of them is final. So no rule in our own
//! table can prevent the drop by another program's chain, but a rule in that chain can. Our rule cannot refer
//! to the frontends in our table, so our table sets a bit of their packets' marks first, and our rule matches that bit.
//!
//! IPVS takes requests from the input hook and sends them through the output hook:
//!
//! * The forward hook sees only the answers of endpoints, and only if the client is not a process of this
//!   node. A chain drops them if its policy is drop (Docker runs `iptables -P FORWARD DROP`).
//!   kube-proxy inserts its KUBE-FORWARD chain in the same way.
//! * The input hook sees the packets of clients before IPVS does. A chain drops them by its policy (ufw), or
//!   by a last rule that drops or rejects every packet (firewalld). `filter/input_accept.rs` sets the bit.
//! * The output hook sees the packets of clients as IPVS sends them to endpoints. A chain that drops them (`ufw default
//!   deny outgoing`) is only named: our table clears that bit before IPVS, and packets of the node's processes never
//!   have it, so no rule of ours could match them.
//!
//! The dataplane nftables translates packets before these hooks, and `nftables/passing.rs` sets the bit:
//!
//! * The forward hook sees requests and answers, except those of processes of this node. Our rule for them is the last of
//!   the chain, because others may be network policies (`contest`: if another program wants to be the last, too). Answers of
//!   IPVS' connections need their rule as well, after a move from there.
//! * The input hook sees requests for endpoints at addresses of this node.
//! * The output hook sees requests of processes of this node.
//!
//! The other rules of the chain are not interpreted: if one of them accepts these packets already, our
//! rule is redundant and harmless.

use std::collections::BTreeSet;
use std::time::Duration;

use netlink::transport::{Transport, protocols};
use netlink::{Error, Refusal};
use netlink::{NLM_F_APPEND, NLM_F_CREATE};
use rustix::io::Errno;

use super::listing::{self, commit_all, dump_chains, refused};
use crate::util::clock;
use nftables::raw::{commit, message_type};
use nftables::sys::*;

mod accept_rule;
mod accepted;
mod chain;
mod contest;
mod decision;
mod ends;
mod legacy;
mod report;

use accept_rule::author;
use accept_rule::{final_drop, insert_best};
use accepted::{Accepted, Author};
pub(crate) use chain::ForeignChain;
pub(crate) use chain::ForeignHook;
use contest::{Contests, Turn};
pub(crate) use decision::{Headers, Taking};
use ends::ChainEnds;
pub use report::ChainReport;
use report::DropCause;
pub(crate) use report::DroppingChain;
use report::MissingRule;

/// A socket that maintains our rules in the foreign chains of its network namespace.
#[derive(Debug)]
pub struct ForeignChains {
    transport: Transport,
    treatments: Treatments,
    contests: Contests,
    ends: ChainEnds,
}

/// The treatments of the chains at each hook that drop packets of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatments {
    /// The treatment of chains at the forward hook.
    pub forward: Treatment,
    /// The treatment of chains at the input hook.
    pub input: Treatment,
    /// The mark, one bit, that our table gives packets of Services.
    pub mark: u32,
    /// Whether packets are translated before these hooks, so that the forward hook sees requests.
    pub are_translated: bool,
}

/// The treatment of a chain that drops packets of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Insert our rule at its head.
    Accept,
    /// Only report it.
    Warn,
}

impl Treatments {
    /// Returns what our rules in chains at `hook` accept. Without any, such a chain is only reported.
    fn accepted(self, hook: ForeignHook) -> Vec<Accepted> {
        let marked = Accepted::Marked { mark: self.mark };
        match hook {
            ForeignHook::Forward if self.are_translated => vec![Accepted::Answers, marked],
            ForeignHook::Forward => vec![Accepted::Answers],
            ForeignHook::Input => vec![marked],
            ForeignHook::Output => Vec::new(),
        }
    }

    /// Returns the treatment of chains at `hook` that drop packets of Services.
    fn of(self, hook: ForeignHook) -> Treatment {
        match hook {
            ForeignHook::Forward => self.forward,
            ForeignHook::Input => self.input,
            ForeignHook::Output => Treatment::Warn,
        }
    }
}

/// The rules of a chain that decide about our rule.
#[derive(Debug, Default)]
struct ChainRules {
    /// The rules that this program inserted.
    ours: Vec<OurRule>,
    /// The comments of rules from the commands that [`DroppingChain`] prints.
    of_operator: Vec<String>,
    /// Whether the last rule of others drops every packet.
    final_drop: Option<DropCause>,
}

/// A rule that this program inserted.
#[derive(Debug)]
struct OurRule {
    handle: u64,
    comment: String,
    is_last: bool,
}

impl ForeignChains {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(treatments: Treatments) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
            treatments,
            contests: Contests::default(),
            ends: ChainEnds::default(),
        })
    }

    /// Returns what tells whether a notification (`NFT_MSG_*`, payload) says that [`Self::apply`] may be needed.
    pub(crate) fn concerns(&self) -> impl Fn(u16, &[u8]) -> bool + Clone + Send + use<> {
        let ends = self.ends.clone();
        move |kind, payload| ends.concern(kind, payload)
    }

    /// Applies the treatments to every foreign chain.
    ///
    /// Costs a dump of all chains and one of the rules of each base chain at the three hooks.
    ///
    /// # Errors
    /// If the chains cannot be listed. Errors of a single chain are in [`ChainReport::failures`];
    /// permanent refusals are in [`ChainReport::dropping`].
    pub fn apply(&mut self) -> Result<ChainReport, Error> {
        let mut report = ChainReport {
            legacy_tables: legacy::in_use(self.treatments),
            ..ChainReport::default()
        };
        let now = clock::since_boot();
        let mut ends = BTreeSet::new();
        for (chain, has_drop_policy) in self.chains()? {
            match self.apply_to(&chain, has_drop_policy, now, &mut report) {
                Ok(true) => drop(ends.insert(chain.name)),
                Ok(false) => {}
                Err(error) => {
                    report.failures.insert(format!("{chain}: {error}"));
                }
            }
        }
        self.ends.set(ends);
        Ok(report)
    }

    /// Returns whether the last rule of the chain is ours, or should be.
    fn apply_to(
        &mut self,
        chain: &ForeignChain,
        has_drop_policy: bool,
        now: Duration,
        report: &mut ChainReport,
    ) -> Result<bool, Error> {
        let rules = self.rules(chain)?;
        let cause = match chain.hook {
            _ if has_drop_policy => Some(DropCause::Policy),
            // A last rule that drops is usual for host firewalls. Their forward chains accept answers, and firewalld's
            // what is translated.
            ForeignHook::Forward if !self.treatments.are_translated || chain.is_of_firewalld() => {
                None
            }
            _ => rules.final_drop,
        };
        let mut accepted = self.treatments.accepted(chain.hook);
        let is_in_vain = |it: &Accepted| it.comes_last(chain.hook) && rules.final_drop.is_some();
        let is_only_named = accepted.is_empty() || accepted.iter().any(is_in_vain);
        accepted.retain(|it| !is_in_vain(it));
        let inserts = self.treatments.of(chain.hook) == Treatment::Accept;
        let wanted = accepted.last().copied();
        let last = wanted.filter(|it| it.comes_last(chain.hook) && cause.is_some() && inserts);
        let turn = last.map_or(Turn::Move, |last| {
            let mut ours = rules.ours.iter();
            let is_displaced = ours.any(|it| it.comment == last.comment() && !it.is_last);
            self.contests.turn(chain, is_displaced, now)
        });
        report.waits |= turn == Turn::Wait;
        if turn == Turn::Rest {
            accepted.retain(|it| !it.comes_last(chain.hook));
        }
        let is_in_place = |it: &Accepted, found: &OurRule| {
            let is_placed = found.is_last || turn == Turn::Wait || !it.comes_last(chain.hook);
            it.comment() == found.comment && is_placed
        };
        let is_wanted = |found: &OurRule| {
            let mut accepted = accepted.iter();
            cause.is_some() && inserts && accepted.any(|it| is_in_place(it, found))
        };
        let (kept, superfluous): (Vec<_>, Vec<_>) = rules.ours.into_iter().partition(is_wanted);
        // The operator's own rule, which the log proposed, is as good as ours.
        let is_of_operator = wanted.is_some_and(|it| {
            let comment = it.operators_comment();
            rules.of_operator.iter().any(|found| found == comment)
        });
        let is_missing = |it: &&Accepted| !kept.iter().any(|found| is_in_place(it, found));
        let missing: Vec<Accepted> = match cause.is_some() && inserts && !is_of_operator {
            true => accepted.iter().filter(is_missing).copied().collect(),
            false => Vec::new(),
        };
        let refusal = self.write(chain, &missing, &superfluous)?;
        if !superfluous.is_empty() {
            report.removed.push(chain.clone());
        }
        let Some(cause) = cause.filter(|_| !is_of_operator) else {
            return Ok(false);
        };
        let are_translated = self.treatments.are_translated;
        let mut drops = |accepted, missing| {
            report.dropping.insert(DroppingChain {
                chain: chain.clone(),
                cause,
                accepted,
                are_translated,
                missing,
            });
        };
        if !inserts || is_only_named {
            drops(wanted.filter(|_| !is_only_named), None);
        }
        match (&refusal, turn) {
            (Some(refusal), _) => drops(missing.last().copied(), Some(refusal.into())),
            (None, Turn::Rest) => drops(last, Some(MissingRule::Displaced)),
            (None, _) if !missing.is_empty() => report.inserted.push(chain.clone()),
            (None, _) => {}
        }
        Ok(last.is_some() && turn != Turn::Rest)
    }

    /// Returns the chains that have a rule of ours.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub fn with_rules(&mut self) -> Result<Vec<ForeignChain>, Error> {
        let mut found = Vec::new();
        for (chain, _) in self.chains()? {
            if !self.rules(&chain)?.ours.is_empty() {
                found.push(chain);
            }
        }
        Ok(found)
    }

    /// Removes our rules from all chains and returns the chains that had one.
    ///
    /// # Errors
    /// If the chains cannot be listed. If some chains fail, the others are still tried, and the last
    /// error is returned.
    pub fn remove_rules(&mut self) -> Result<Vec<ForeignChain>, Error> {
        let mut result = Ok(Vec::new());
        for (chain, _) in self.chains()? {
            match (self.remove_from(&chain), &mut result) {
                (Ok(true), Ok(removed)) => removed.push(chain),
                (Ok(_), _) => {}
                (Err(error), _) => result = Err(error),
            }
        }
        result
    }

    /// Returns whether the chain had a rule of ours.
    fn remove_from(&mut self, chain: &ForeignChain) -> Result<bool, Error> {
        let rules = self.rules(chain)?;
        self.delete(chain, &rules.ours)?;
        Ok(!rules.ours.is_empty())
    }

    /// Returns all base chains at the three hooks, each with whether its policy is drop.
    fn chains(&mut self) -> Result<Vec<(ForeignChain, bool)>, Error> {
        dump_chains(&mut self.transport, chain::read)
    }

    fn rules(&mut self, chain: &ForeignChain) -> Result<ChainRules, Error> {
        let mut rules = ChainRules::default();
        self.transport.dump(
            message_type(NFT_MSG_GETRULE),
            "reading the rules of a foreign chain",
            |writer| chain.name.write(writer),
            |rules| *rules = ChainRules::default(),
            &mut rules,
            |rules, message| {
                // The kernel dumps the rules in their order.
                rules.ours.iter_mut().for_each(|rule| rule.is_last = false);
                match author(message.payload) {
                    Some(Author::Operator(comment)) => rules.of_operator.push(comment),
                    Some(Author::Program(comment)) => {
                        let handle = listing::handle(message.payload)?;
                        rules.ours.extend(handle.map(|handle| OurRule {
                            handle,
                            comment,
                            is_last: true,
                        }));
                    }
                    None => rules.final_drop = final_drop(message.payload),
                }
                Ok(())
            },
        )?;
        Ok(rules)
    }

    /// Inserts our rules and deletes old ones. Returns the kernel's refusal of the new ones if it is permanent.
    fn write(
        &mut self,
        chain: &ForeignChain,
        new: &[Accepted],
        old: &[OurRule],
    ) -> Result<Option<Refusal>, Error> {
        if new.is_empty() {
            return self.delete(chain, old).map(|()| None);
        }
        let refusal = self.exchange(chain, new, old)?;
        if refusal.is_none() || old.is_empty() {
            return Ok(refusal);
        }
        // Another program may have deleted an old one. The others must go also if the new ones cannot come.
        self.delete(chain, old)?;
        self.exchange(chain, new, &[])
    }

    /// Does so in one transaction, so that a rule that moves is never missing.
    fn exchange(
        &mut self,
        chain: &ForeignChain,
        new: &[Accepted],
        old: &[OurRule],
    ) -> Result<Option<Refusal>, Error> {
        let refusal = insert_best(chain, |syntax| {
            commit(&mut self.transport, |batch| {
                for accepted in new {
                    // Without NLM_F_APPEND the kernel puts the rule first.
                    let flags = match accepted.comes_last(chain.hook) {
                        true => NLM_F_CREATE | NLM_F_APPEND,
                        false => NLM_F_CREATE,
                    };
                    batch.push(message_type(NFT_MSG_NEWRULE), flags, |writer| {
                        chain.name.write(writer);
                        accept_rule::write(writer, *accepted, syntax);
                    })?;
                }
                (old.iter()).try_for_each(|old| chain.name.delete_rule(batch, Some(old.handle)))
            })
        })?;
        let Some(refusal) = refusal else {
            return Ok(None);
        };
        let error = refused("inserting our rule", refusal.clone());
        if error.is_transient() {
            return Err(error);
        }
        Ok(Some(refusal))
    }

    fn delete(&mut self, chain: &ForeignChain, rules: &[OurRule]) -> Result<(), Error> {
        // A transaction for each rule: in a common one, a rule that is gone would keep all others.
        for rule in rules {
            let doing = "removing our rule";
            let deleted = commit_all(&mut self.transport, doing, |batch| {
                chain.name.delete_rule(batch, Some(rule.handle))
            });
            match deleted {
                // Another program has deleted the rule meanwhile.
                Err(error) if error.errno() == Some(Errno::NOENT) => {}
                other => other?,
            }
        }
        Ok(())
    }
}
