//! Our rule in the forward chains of other programs.
//!
//! A packet passes the chains of all tables, and a drop in any of them is final. If another program's
//! forward chain has the policy drop (Docker runs `iptables -P FORWARD DROP`), no rule in our own table
//! can prevent the drop. IPVS takes requests from the input hook and sends them through the output hook, so the
//! forward hook sees only the answers of endpoints, and only if the client is not a process of this
//! node. Every such chain gets one rule at its head that accepts these answers. kube-proxy inserts
//! its KUBE-FORWARD chain in the same way.
//!
//! The other rules of the chain are not interpreted: if one of them accepts established connections
//! already, our rule is redundant and harmless.

use std::collections::BTreeSet;
use std::fmt;

use ipvs_netlink::attr::Writer;
use ipvs_netlink::batch::Batch;
use ipvs_netlink::transport::{Message, RequestError, Transport, protocols};
use ipvs_netlink::{Error, Refusal};
use netlink_packet_core::NLM_F_CREATE;
use rustix::io::Errno;

use super::message::{contents, frame, message_type};
use super::sys::*;

mod accept_rule;
mod chain;
mod legacy;

pub(super) use accept_rule::author;
use accept_rule::{Author, insert_best};
pub(crate) use chain::ForwardChain;
pub(super) use chain::has_drop_policy;

/// A socket that maintains our rule in the forward chains of its network namespace.
#[derive(Debug)]
pub struct Forwarding {
    transport: Transport,
    treatment: Treatment,
}

/// What to do about a forward chain whose policy is drop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// Insert our rule at its head.
    #[default]
    Accept,
    /// Only report it.
    Warn,
}

/// The result of [`Forwarding::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardReport {
    /// The chains that got our rule.
    pub inserted: Vec<ForwardChain>,
    /// The chains that lost our rule, because their policy or the treatment changed.
    pub removed: Vec<ForwardChain>,
    /// The chains that may drop answers.
    pub dropping: BTreeSet<DroppingChain>,
    /// Errors, each with its chain. The next [`Forwarding::apply`] may succeed.
    pub failures: BTreeSet<String>,
    /// The programs of iptables-legacy whose table `filter` is in use. Netlink gives no access to it.
    pub legacy_programs: Vec<&'static str>,
}

/// A chain with policy drop and without our rule.
///
/// Prints with the command that inserts one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppingChain {
    chain: ForwardChain,
    /// The kernel's error for our rule; `None` with [`Treatment::Warn`].
    refusal: Option<String>,
}

/// The rules of a chain that have a comment of [`Author`]'s.
#[derive(Debug, Default)]
struct CommentedRules {
    /// Handles of the rules that this program inserted.
    ours: Vec<u64>,
    /// Whether the operator ran the command that [`DroppingChain`] prints.
    has_operators: bool,
}

impl Forwarding {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(treatment: Treatment) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
            treatment,
        })
    }

    /// Applies the treatment to every forward chain.
    ///
    /// Costs a dump of all chains and one of the rules of each forward chain.
    ///
    /// # Errors
    /// If the chains cannot be listed. Errors of a single chain are in [`ForwardReport::failures`];
    /// permanent refusals are in [`ForwardReport::dropping`].
    pub fn apply(&mut self) -> Result<ForwardReport, Error> {
        let mut report = ForwardReport {
            legacy_programs: legacy::in_use(),
            ..ForwardReport::default()
        };
        for (chain, drops) in self.chains()? {
            if let Err(error) = self.apply_to(&chain, drops, &mut report) {
                report.failures.insert(format!("{chain}: {error}"));
            }
        }
        Ok(report)
    }

    fn apply_to(
        &mut self,
        chain: &ForwardChain,
        drops: bool,
        report: &mut ForwardReport,
    ) -> Result<(), Error> {
        let rules = self.commented_rules(chain)?;
        let needs_ours = drops && self.treatment == Treatment::Accept;
        if !rules.ours.is_empty() {
            if needs_ours {
                return Ok(());
            }
            self.delete(chain, &rules.ours)?;
            report.removed.push(chain.clone());
        }
        if !drops || rules.has_operators {
            return Ok(());
        }
        let refusal = match self.treatment {
            Treatment::Accept => match self.insert(chain)? {
                None => {
                    report.inserted.push(chain.clone());
                    return Ok(());
                }
                Some(refusal) => Some(refusal.to_string()),
            },
            Treatment::Warn => None,
        };
        let chain = chain.clone();
        report.dropping.insert(DroppingChain { chain, refusal });
        Ok(())
    }

    /// Removes our rules from all chains and returns the chains that had one.
    ///
    /// # Errors
    /// If the chains cannot be listed. If some chains fail, the others are still tried, and the last error
    /// is returned.
    pub fn remove_rules(&mut self) -> Result<Vec<ForwardChain>, Error> {
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
    fn remove_from(&mut self, chain: &ForwardChain) -> Result<bool, Error> {
        let rules = self.commented_rules(chain)?;
        self.delete(chain, &rules.ours)?;
        Ok(!rules.ours.is_empty())
    }

    /// Returns all forward chains, each with whether its policy is drop.
    fn chains(&mut self) -> Result<Vec<(ForwardChain, bool)>, Error> {
        let mut chains = Vec::new();
        let dumped = self.transport.dump(
            message_type(NFT_MSG_GETCHAIN),
            "reading the packet filter's chains",
            |writer| writer.header(&[NFPROTO_UNSPEC, 0, 0, 0]),
            Vec::clear,
            &mut chains,
            |chains, message: Message<'_>| {
                chains.extend(chain::read(message.payload)?);
                Ok(())
            },
        );
        match dumped {
            // A kernel without nf_tables has no chains (`nfnetlink_rcv_msg`). The transaction of our
            // own table reports that it is missing.
            Err(error) if error.is_invalid() => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(()) => Ok(chains),
        }
    }

    fn commented_rules(&mut self, chain: &ForwardChain) -> Result<CommentedRules, Error> {
        let mut rules = CommentedRules::default();
        self.transport.dump(
            message_type(NFT_MSG_GETRULE),
            "reading the rules of a forward chain",
            |writer| chain.write(writer),
            |rules| *rules = CommentedRules::default(),
            &mut rules,
            |rules, message| {
                match author(message.payload) {
                    Some(Author::Operator) => rules.has_operators = true,
                    Some(Author::Program) => {
                        for attribute in contents(message.payload) {
                            let attribute = attribute?;
                            if attribute.kind == NFTA_RULE_HANDLE {
                                rules.ours.push(u64::from_be_bytes(attribute.array()?));
                            }
                        }
                    }
                    None => {}
                }
                Ok(())
            },
        )?;
        Ok(rules)
    }

    /// Inserts our rule at the head of `chain`. Returns the kernel's refusal if it is permanent.
    fn insert(&mut self, chain: &ForwardChain) -> Result<Option<Refusal>, Error> {
        let refused = insert_best(chain, |syntax| {
            self.change(NFT_MSG_NEWRULE, NLM_F_CREATE, |writer| {
                chain.write(writer);
                accept_rule::write(writer, syntax);
            })
        })?;
        let Some(refusal) = refused else {
            return Ok(None);
        };
        let error = Error::Refused {
            doing: "inserting our rule".into(),
            refusal: refusal.clone(),
        };
        if error.is_transient() {
            return Err(error);
        }
        Ok(Some(refusal))
    }

    fn delete(&mut self, chain: &ForwardChain, handles: &[u64]) -> Result<(), Error> {
        for handle in handles {
            let refused = self.change(NFT_MSG_DELRULE, 0, |writer| {
                chain.write(writer);
                writer.bytes(NFTA_RULE_HANDLE, &handle.to_be_bytes());
            })?;
            match refused {
                Some(refusal) if refusal.errno != Errno::NOENT => {
                    return Err(Error::Refused {
                        doing: "removing our rule".into(),
                        refusal,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends a transaction of one message. Returns the kernel's refusal, if any.
    fn change(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<Option<Refusal>, Error> {
        let mut batch = Batch::new();
        frame(&mut batch, NFNL_MSG_BATCH_BEGIN, |_| {})?;
        batch.push(message_type(kind), flags, body)?;
        frame(&mut batch, NFNL_MSG_BATCH_END, |_| {})?;
        match self.transport.run_whole(&mut batch, 1)?.into_iter().next() {
            None => Ok(None),
            Some((_, RequestError::Refused(refusal))) => Ok(Some(refusal)),
            Some(_) => Err(Error::AnswersLost),
        }
    }
}

impl fmt::Display for DroppingChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chain, refusal } = self;
        write!(
            f,
            "{chain} drops forwarded packets by its policy; unless one of its rules accepts established \
             connections, only processes of this node receive the answers of endpoints; "
        )?;
        if let Some(refusal) = refusal {
            write!(f, "inserting a rule for them was refused: {refusal}; ")?;
        }
        write!(f, "to accept them, run `{}`", chain.command())
    }
}
