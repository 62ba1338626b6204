//! Our rules in the chains of other programs.
//!
//! A packet passes the chains of all tables, and a drop in any of them is final. So no rule in our own
//! table can prevent the drop by another program's chain, but a rule at the head of that chain can. IPVS
//! takes requests from the input hook and sends them through the output hook:
//!
//! * The forward hook sees only the answers of endpoints, and only if the client is not a process of this
//!   node. A chain drops them if its policy is drop (Docker runs `iptables -P FORWARD DROP`).
//!   kube-proxy inserts its KUBE-FORWARD chain in the same way.
//! * The input hook sees the packets of clients before IPVS does. A chain drops them by its policy (ufw), or
//!   by a last rule that drops or rejects every packet (firewalld). Our rule cannot refer to the
//!   frontends in our table, so our table sets a bit of their packets' marks first
//!   (`filter/input_accept.rs`), and our rule matches that bit.
//!
//! * The output hook sees the packets of clients as IPVS sends them to endpoints. A chain that drops them (`ufw default
//!   deny outgoing`) is only named: our table clears that bit before IPVS, and packets of the node's processes never
//!   have it, so no rule of ours could match them.
//!
//! The other rules of the chain are not interpreted: if one of them accepts these packets already, our
//! rule is redundant and harmless.

use netlink::NLM_F_CREATE;
use netlink::transport::{Transport, protocols};
use netlink::{Error, Refusal};
use rustix::io::Errno;

use super::listing::{self, commit_all, dump_chains, refused};
use nftables::raw::{commit, message_type};
use nftables::sys::*;

mod accept_rule;
mod accepted;
mod chain;
mod decision;
mod legacy;
mod report;

use accept_rule::author;
use accept_rule::{final_drop, insert_best};
use accepted::{Accepted, Author};
pub(crate) use chain::ForeignChain;
pub(crate) use chain::ForeignHook;
use chain::may_drop;
pub(crate) use decision::{Dropping, Headers};
pub use report::ChainReport;
use report::DropCause;
pub(crate) use report::DroppingChain;

/// A socket that maintains our rules in the foreign chains of its network namespace.
#[derive(Debug)]
pub struct ForeignChains {
    transport: Transport,
    treatments: Treatments,
}

/// The treatments of the chains at each hook that drop packets of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Treatments {
    /// The treatment of chains at the forward hook that drop the answers of endpoints.
    pub answers: Treatment,
    /// The treatment of chains at the input hook that drop packets for frontends.
    pub frontends: Treatment,
    /// The mark, one bit, that our table gives packets for frontends.
    pub frontend_mark: u32,
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
    /// Returns what our rules accept at the forward hook and at the input hook.
    fn accepted(self) -> [Accepted; 2] {
        let mark = self.frontend_mark;
        [Accepted::Answers, Accepted::ForFrontends { mark }]
    }

    /// Returns what our rule in `chain` accepts, and the treatment of `chain` if it drops these packets. Without
    /// such a rule, the chain is only reported.
    fn of(self, chain: &ForeignChain) -> (Option<Accepted>, Treatment) {
        let [answers, frontends] = self.accepted();
        match chain.hook {
            ForeignHook::Forward => (Some(answers), self.answers),
            ForeignHook::Input => (Some(frontends), self.frontends),
            ForeignHook::Output => (None, Treatment::Warn),
        }
    }
}

/// The rules of a chain that decide about our rule.
#[derive(Debug, Default)]
struct ChainRules {
    /// Handles and comments of the rules that this program inserted.
    ours: Vec<(u64, String)>,
    /// Whether the operator ran the command that [`DroppingChain`] prints.
    has_operators: bool,
    /// Whether the last rule drops every packet.
    final_drop: Option<DropCause>,
}

/// Returns whether a notification about a message of this kind (`NFT_MSG_*`) says that a foreign chain may
/// need [`ForeignChains::apply`]: one that may drop packets of Services was added or changed, or our rule in one
/// was deleted.
pub(crate) fn concerns(kind: u16, payload: &[u8]) -> bool {
    match kind {
        NFT_MSG_NEWCHAIN => may_drop(payload),
        // New rules are not watched: most are behind ours, which is at the head of the chain. The next
        // resync finds one that drops before it.
        NFT_MSG_DELRULE => author(payload).is_some(),
        _ => false,
    }
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
        })
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
        for (chain, has_drop_policy) in self.chains()? {
            if let Err(error) = self.apply_to(&chain, has_drop_policy, &mut report) {
                report.failures.insert(format!("{chain}: {error}"));
            }
        }
        Ok(report)
    }

    fn apply_to(
        &mut self,
        chain: &ForeignChain,
        has_drop_policy: bool,
        report: &mut ChainReport,
    ) -> Result<(), Error> {
        let rules = self.rules(chain)?;
        let (accepted, treatment) = self.treatments.of(chain);
        let cause = match chain.hook {
            _ if has_drop_policy => Some(DropCause::Policy),
            // A last rule that drops is usual for host firewalls, whose chains are at these hooks.
            ForeignHook::Forward => None,
            ForeignHook::Input | ForeignHook::Output => rules.final_drop,
        };
        let wanted = accepted.filter(|_| cause.is_some() && treatment == Treatment::Accept);
        let comment = wanted.map(Accepted::comment);
        let (kept, superfluous): (Vec<_>, Vec<_>) =
            (rules.ours.into_iter()).partition(|(_, found)| Some(found) == comment.as_ref());
        if !superfluous.is_empty() {
            self.delete(chain, &superfluous)?;
            report.removed.push(chain.clone());
        }
        // The operator's own rule, which the log proposed, is as good as ours.
        if !kept.is_empty() || rules.has_operators {
            return Ok(());
        }
        let Some(cause) = cause else {
            return Ok(());
        };
        let refusal = match wanted {
            Some(accepted) => match self.insert(chain, accepted)? {
                None => {
                    report.inserted.push(chain.clone());
                    return Ok(());
                }
                Some(refusal) => Some((&refusal).into()),
            },
            None => None,
        };
        report.dropping.insert(DroppingChain {
            chain: chain.clone(),
            cause,
            accepted,
            refusal,
        });
        Ok(())
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
                rules.final_drop = final_drop(message.payload);
                match author(message.payload) {
                    Some(Author::Operator) => rules.has_operators = true,
                    Some(Author::Program(comment)) => {
                        let handle = listing::handle(message.payload)?;
                        rules.ours.extend(handle.map(|handle| (handle, comment)));
                    }
                    None => {}
                }
                Ok(())
            },
        )?;
        Ok(rules)
    }

    /// Inserts our rule at the head of `chain`. Returns the kernel's refusal if it is permanent.
    fn insert(
        &mut self,
        chain: &ForeignChain,
        accepted: Accepted,
    ) -> Result<Option<Refusal>, Error> {
        let refusal = insert_best(chain, |syntax| {
            // Without NLM_F_APPEND the kernel puts the rule first: a drop before it would be final.
            commit(&mut self.transport, |batch| {
                batch.push(message_type(NFT_MSG_NEWRULE), NLM_F_CREATE, |writer| {
                    chain.name.write(writer);
                    accept_rule::write(writer, accepted, syntax);
                })
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

    fn delete(&mut self, chain: &ForeignChain, rules: &[(u64, String)]) -> Result<(), Error> {
        // A transaction for each rule: in a common one, a rule that is gone would keep all others.
        for (handle, _) in rules {
            let doing = "removing our rule";
            let deleted = commit_all(&mut self.transport, doing, |batch| {
                chain.name.delete_rule(batch, Some(*handle))
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
