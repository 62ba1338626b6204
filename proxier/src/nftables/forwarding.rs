//! Chains of others that drop the answers of endpoints, and the rule of ours that they get.
//!
//! A packet passes all tables, and one drop is final: where somebody's forward chain has the policy
//! drop (Docker's `iptables -P FORWARD DROP`), no rule in a table of ours helps. What IPVS sends to
//! endpoints is never forwarded, but their answers are, unless the client is a process of this node.
//! So such a chain has to accept established connections. Where it does not, it gets a rule at its
//! head that does so for answers: kube-proxy's KUBE-FORWARD, less what no Service needs.

use std::collections::BTreeSet;
use std::fmt;

use ipvs_netlink::attr::Writer;
use ipvs_netlink::batch::Batch;
use ipvs_netlink::transport::{Message, RequestError, Transport, protocols};
use ipvs_netlink::{Error, Refusal};
use netlink_packet_core::NLM_F_CREATE;
use rustix::io::Errno;

use super::message::{frame, message_type};
use super::sys::*;

mod chain;
mod elements;
mod extension;
mod legacy;
mod opening;
mod rule;
mod rules;

pub use chain::ForwardChain;
pub(super) use chain::is_dropping;
use elements::{Elements, Sets};
pub(super) use opening::is_ours;
use rules::{Missing, Rules};

/// Sees to the forward chains of the network namespace in which this was opened.
#[derive(Debug)]
pub struct Forwarding {
    transport: Transport,
    treatment: Treatment,
}

/// What is done about a chain that drops answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Treatment {
    /// A rule of ours at its head accepts them.
    #[default]
    Accept,
    /// Nothing.
    Warn,
}

/// What was done, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// These chains have got a rule of ours.
    pub opened: Vec<ForwardChain>,
    /// These have lost it: they drop no longer, or nothing is to be done about it.
    pub closed: Vec<ForwardChain>,
    /// These drop answers.
    pub obstacles: BTreeSet<Obstacle>,
    /// Why there are chains that could not be seen to. Another look may help.
    pub failures: BTreeSet<String>,
    /// The table `filter` of these programs is in use, and may drop answers, too.
    pub unreadable: Vec<&'static str>,
}

/// A chain that drops what is forwarded, and whose rules do not accept established connections.
///
/// What it accepts more narrowly, for one interface say, is not taken into account. The chains of
/// iptables-legacy are not in nf_tables, so they are never among these ([`Seen::unreadable`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Obstacle {
    chain: ForwardChain,
    /// Why it has no rule of ours, in the kernel's words, if it should.
    refusal: Option<String>,
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

    /// Looks at all forward chains and gives rules of ours to those that need one.
    ///
    /// Costs a dump of all chains, one of the rules of each forward chain, and one of its table's
    /// where it drops and only chains that it jumps to can tell. A chain that has our rule is not
    /// looked at further.
    ///
    /// # Errors
    /// When the chains cannot be listed. What goes wrong with one of them is among the
    /// [`Seen::failures`], and what the kernel refuses for good among the [`Seen::obstacles`].
    pub fn see_to(&mut self) -> Result<Seen, Error> {
        let mut seen = Seen {
            unreadable: legacy::in_use(),
            ..Seen::default()
        };
        for (chain, drops) in self.chains()? {
            if let Err(error) = self.see_to_one(&chain, drops, &mut seen) {
                seen.failures.insert(format!("{chain}: {error}"));
            }
        }
        Ok(seen)
    }

    fn see_to_one(
        &mut self,
        chain: &ForwardChain,
        drops: bool,
        seen: &mut Seen,
    ) -> Result<(), Error> {
        let rules = self.rules(chain, Some(chain.name()))?;
        let keeps_ours = drops && self.treatment == Treatment::Accept;
        if !rules.ours.is_empty() {
            if keeps_ours {
                return Ok(());
            }
            self.delete(chain, &rules)?;
            seen.closed.push(chain.clone());
        }
        if !drops || self.accepts(chain, rules)? {
            return Ok(());
        }
        let refusal = match self.treatment {
            Treatment::Accept => match self.insert(chain)? {
                None => {
                    seen.opened.push(chain.clone());
                    return Ok(());
                }
                Some(refusal) => Some(refusal.to_string()),
            },
            Treatment::Warn => None,
        };
        let chain = chain.clone();
        seen.obstacles.insert(Obstacle { chain, refusal });
        Ok(())
    }

    /// Removes our rules from all chains, and says which had one.
    ///
    /// # Errors
    /// Those of the socket, of the dumps, and of the removals; the last one, after all chains.
    pub fn clear(&mut self) -> Result<Vec<ForwardChain>, Error> {
        let mut result = Ok(Vec::new());
        for (chain, _) in self.chains()? {
            match (self.clear_one(&chain), &mut result) {
                (Ok(true), Ok(closed)) => closed.push(chain),
                (Ok(_), _) => {}
                (Err(error), _) => result = Err(error),
            }
        }
        result
    }

    /// Answers whether there was a rule of ours.
    fn clear_one(&mut self, chain: &ForwardChain) -> Result<bool, Error> {
        let rules = self.rules(chain, Some(chain.name()))?;
        self.delete(chain, &rules)?;
        Ok(!rules.ours.is_empty())
    }

    /// The forward chains that there are, and whether their policy is drop.
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
            // There is no nf_tables (`nfnetlink_rcv_msg`), so there are none. That it lacks is for
            // our own rules to say.
            Err(error) if error.is_invalid() => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(()) => Ok(chains),
        }
    }

    /// Whether `chain`, whose own rules are `rules`, is sure to accept established connections.
    fn accepts(&mut self, chain: &ForwardChain, mut rules: Rules) -> Result<bool, Error> {
        let mut sets = Sets::new();
        loop {
            match rules.accept(chain.name(), &sets) {
                Ok(accepts) => return Ok(accepts),
                Err(Missing::Rules) => {
                    rules = self.rules(chain, None)?;
                    // Names that the kernel gave may be others' by now.
                    sets.clear();
                }
                Err(Missing::Set(name)) => {
                    let elements = self.elements(chain, &name)?;
                    sets.insert(name, elements);
                }
            }
        }
    }

    /// The rules of `chain`'s table, or of one chain in it.
    fn rules(&mut self, chain: &ForwardChain, only: Option<&str>) -> Result<Rules, Error> {
        let mut rules = match only {
            Some(_) => Rules::default(),
            None => Rules::all(),
        };
        self.transport.dump(
            message_type(NFT_MSG_GETRULE),
            "reading the rules of a forward chain",
            |writer| {
                writer.header(&[chain.family(), 0, 0, 0]);
                writer.string(NFTA_RULE_TABLE, chain.table());
                if let Some(name) = only {
                    writer.string(NFTA_RULE_CHAIN, name);
                }
            },
            Rules::clear,
            &mut rules,
            |rules, message| rules.read(message.payload),
        )?;
        Ok(rules)
    }

    /// The elements of a set in `chain`'s table.
    fn elements(&mut self, chain: &ForwardChain, set: &str) -> Result<Elements, Error> {
        let mut elements = Elements::default();
        self.transport.dump(
            message_type(NFT_MSG_GETSETELEM),
            "reading a set of connection states",
            |writer| {
                writer.header(&[chain.family(), 0, 0, 0]);
                writer.string(NFTA_SET_ELEM_LIST_TABLE, chain.table());
                writer.string(NFTA_SET_ELEM_LIST_SET, set);
            },
            Elements::clear,
            &mut elements,
            |elements, message| elements.read(message.payload),
        )?;
        Ok(elements)
    }

    /// Puts our rule at the head of `chain`. Answers why the kernel does not want it, if it does not;
    /// what may be otherwise the next time is an error.
    fn insert(&mut self, chain: &ForwardChain) -> Result<Option<Refusal>, Error> {
        let refused = opening::put_best(chain, |dialect| {
            self.change(NFT_MSG_NEWRULE, NLM_F_CREATE, |writer| {
                writer.header(&[chain.family(), 0, 0, 0]);
                opening::write(writer, chain, dialect);
            })
        })?;
        let Some(refusal) = refused else {
            return Ok(None);
        };
        let error = Error::Refused {
            doing: "adding our rule".into(),
            refusal: refusal.clone(),
        };
        if error.is_transient() {
            return Err(error);
        }
        Ok(Some(refusal))
    }

    fn delete(&mut self, chain: &ForwardChain, rules: &Rules) -> Result<(), Error> {
        for handle in &rules.ours {
            let refused = self.change(NFT_MSG_DELRULE, 0, |writer| {
                writer.header(&[chain.family(), 0, 0, 0]);
                writer.string(NFTA_RULE_TABLE, chain.table());
                writer.string(NFTA_RULE_CHAIN, chain.name());
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

    /// Makes one change. Answers why the kernel did not want it, if it did not.
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

/// With the command that removes it.
impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chain, refusal } = self;
        write!(
            f,
            "{chain} drops what is forwarded and has no rule for all established connections: nobody \
             but processes of this node is sure to hear the answers of endpoints; "
        )?;
        if let Some(refusal) = refusal {
            write!(f, "a rule of ours for them was refused: {refusal}; ")?;
        }
        write!(f, "all do after `{}`", chain.command())
    }
}
