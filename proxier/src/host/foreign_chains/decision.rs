//! What the chains of other programs do with one packet.
//!
//! Their rules are evaluated as far as a packet's headers, devices, mark and connection state decide. Any other expression
//! counts as one that may match or not; if both lead to the same end, that is the decision.

use std::collections::BTreeMap;

use netlink::Error;
use netlink::attr::find;
use netlink::transport::Transport;

use super::ForeignChains;
use super::chain::ForeignHook;
use super::dump_chains;
use crate::host::listing::{self, ChainName};
use nftables::Verdict;
use nftables::raw::{contents, message_type};
use nftables::sys::*;

mod elements;
mod expression;

use elements::Elements;
pub(crate) use expression::Headers;
use expression::{Fit, evaluate};

/// The kernel's limit of jumps inside jumps.
const MOST_JUMPS: usize = 16;

/// The most rules that are evaluated for one packet.
const MOST_RULES: usize = 100_000;

/// The hook before routing (`enum nf_inet_hooks`).
const NF_INET_PRE_ROUTING: u32 = 0;

/// The prefix of the names of our own tables.
const OURS: &str = "ipvs-proxier";

/// A chain that takes a packet out of its way: it drops it, or a NAT chain sends it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taking {
    /// The chain at the hook.
    pub(crate) chain: ChainName,
    /// The rule or policy that does so: `rule 4 of chain input of table inet filter`.
    pub(crate) by: String,
    /// Whether it certainly does. If not, a rule before it that was not evaluated may accept the packet.
    pub(crate) is_certain: bool,
}

/// The ends that a chain may have for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ends {
    accepts: bool,
    /// What drops it.
    drops: Option<String>,
    /// Whether the rule after the jump to this chain, or the policy, may follow.
    continues: bool,
}

impl Ends {
    fn add(&mut self, other: &Self) {
        self.accepts |= other.accepts;
        if self.drops.is_none() {
            self.drops.clone_from(&other.drops);
        }
    }
}

/// The rules of a table, by chain.
#[derive(Default)]
struct Rules(BTreeMap<String, Vec<ForeignRule>>);

struct ForeignRule {
    handle: u64,
    /// The bytes of its list of expressions.
    expressions: Vec<u8>,
}

impl ForeignChains {
    /// Returns the chains of other programs at `hook` that drop, or may drop, a packet with these headers. Changes nothing.
    ///
    /// # Cost
    /// A dump of the rules of each table with a chain at the hook, and of the sets that its rules look up.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub(crate) fn dropping(
        &mut self,
        hook: ForeignHook,
        headers: &Headers,
    ) -> Result<Vec<Taking>, Error> {
        let chains = self.chains()?.into_iter();
        let chains = chains.filter(|(chain, _)| chain.hook == hook);
        let chains = chains.map(|(chain, has_drop_policy)| (chain.name, has_drop_policy));
        self.taking(chains.collect(), headers)
    }

    /// Returns the NAT chains of other programs that send a packet with these headers to another destination, or may do
    /// so, before it is routed. Changes nothing.
    ///
    /// # Cost
    /// As [`Self::dropping`].
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub(crate) fn translating(&mut self, headers: &Headers) -> Result<Vec<Taking>, Error> {
        let hook = match headers.input.is_empty() {
            true => NF_INET_LOCAL_OUT,
            false => NF_INET_PRE_ROUTING,
        };
        let chains = dump_chains(&mut self.transport, |payload| read_nat(payload, hook))?;
        let chains = chains.into_iter().map(|chain| (chain, false));
        self.taking(chains.collect(), headers)
    }

    /// Evaluates `chains`, each with whether its policy is drop.
    fn taking(
        &mut self,
        chains: Vec<(ChainName, bool)>,
        headers: &Headers,
    ) -> Result<Vec<Taking>, Error> {
        let mut found = Vec::new();
        for (chain, has_drop_policy) in chains {
            let is_of_family = match chain.family {
                "ip" => headers.source.is_ipv4(),
                "ip6" => headers.source.is_ipv6(),
                _ => true,
            };
            if !is_of_family || chain.table.starts_with(OURS) {
                continue;
            }
            let mut evaluation = Evaluation {
                rules: read(&mut self.transport, &chain)?,
                elements: Elements::new(&mut self.transport, &chain),
                name: &chain,
                headers,
                left: MOST_RULES,
            };
            let mut ends = evaluation.run(&chain.name, 0)?;
            if ends.continues {
                let policy = Ends {
                    accepts: !has_drop_policy,
                    drops: has_drop_policy.then(|| format!("the policy of {chain}")),
                    continues: false,
                };
                ends.add(&policy);
            }
            found.extend(ends.drops.map(|by| Taking {
                chain,
                by,
                is_certain: !ends.accepts,
            }));
        }
        Ok(found)
    }
}

/// Reads the name of a NAT chain at `hook`; `None` for any other chain.
fn read_nat(payload: &[u8], hook: u32) -> Result<Option<ChainName>, Error> {
    let kind = find(contents(payload), NFTA_CHAIN_TYPE)?;
    let is_nat = kind.is_some_and(|kind| listing::text(kind.value) == "nat");
    let found = find(contents(payload), NFTA_CHAIN_HOOK)?;
    let number = found
        .map(|found| find(found.nested(), NFTA_HOOK_HOOKNUM))
        .transpose()?;
    let number = number.flatten().map(|number| number.u32_be()).transpose()?;
    let is_here = is_nat && number == Some(hook);
    is_here.then(|| listing::chain_name(payload)).transpose()
}

/// Reads the rules of the table of `chain`.
fn read(transport: &mut Transport, chain: &ChainName) -> Result<Rules, Error> {
    let mut rules = Rules::default();
    transport.dump(
        message_type(NFT_MSG_GETRULE),
        "reading the rules of a foreign table",
        |writer| {
            listing::header(writer, chain.family);
            writer.string(NFTA_RULE_TABLE, &chain.table);
        },
        |rules| *rules = Rules::default(),
        &mut rules,
        |rules, message| {
            // Kernels before 4.20 dump the rules of other tables too.
            let of = |kind| find(contents(message.payload), kind);
            let table = of(NFTA_RULE_TABLE)?.map(|it| listing::text(it.value));
            let (name, expressions) = (of(NFTA_RULE_CHAIN)?, of(NFTA_RULE_EXPRESSIONS)?);
            if let (Some(name), true) = (name, table.is_none_or(|table| table == chain.table)) {
                let of_chain = rules.0.entry(listing::text(name.value)).or_default();
                of_chain.push(ForeignRule {
                    handle: listing::handle(message.payload)?.unwrap_or_default(),
                    expressions: expressions.map_or_else(Vec::new, |it| it.value.to_vec()),
                });
            }
            Ok(())
        },
    )?;
    Ok(rules)
}

struct Evaluation<'a> {
    rules: Rules,
    elements: Elements<'a>,
    name: &'a ChainName,
    headers: &'a Headers,
    /// How many more rules may be evaluated.
    left: usize,
}

impl Evaluation<'_> {
    fn run(&mut self, chain: &str, depth: usize) -> Result<Ends, Error> {
        let mut ends = Ends::default();
        let count = self.rules.0.get(chain).map_or(0, Vec::len);
        for index in 0..count {
            let Some(rule) = self.rules.0.get(chain).and_then(|rules| rules.get(index)) else {
                break;
            };
            let handle = rule.handle;
            let effect = evaluate(&rule.expressions, self.headers, &mut self.elements)?;
            let is_certain = effect.fit == Fit::Certain;
            let Some(left) = self.left.checked_sub(1).filter(|_| depth < MOST_JUMPS) else {
                // Too many to know.
                return Ok(Ends {
                    accepts: true,
                    drops: Some(format!("a rule of chain {chain}")),
                    continues: true,
                });
            };
            self.left = left;
            let (Some(verdict), true) = (effect.verdict, effect.fit != Fit::Never) else {
                continue;
            };
            let taken = match &verdict {
                Verdict::Accept => Ends {
                    accepts: true,
                    ..Ends::default()
                },
                Verdict::Drop => {
                    let table = format!("{} {}", self.name.family, self.name.table);
                    Ends {
                        drops: Some(format!("rule {handle} of chain {chain} of table {table}")),
                        ..Ends::default()
                    }
                }
                Verdict::Return => Ends {
                    continues: true,
                    ..Ends::default()
                },
                Verdict::Jump(next) | Verdict::Goto(next) => self.run(next, depth + 1)?,
            };
            ends.add(&taken);
            let goes_on = match verdict {
                Verdict::Jump(_) => taken.continues,
                _ => {
                    ends.continues |= taken.continues;
                    false
                }
            };
            if is_certain && !goes_on {
                return Ok(ends);
            }
        }
        ends.continues = true;
        Ok(ends)
    }
}
