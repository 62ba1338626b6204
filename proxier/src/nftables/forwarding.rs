//! Chains of others that drop the answers of endpoints.
//!
//! A packet passes all tables, and one drop is final: where somebody's forward chain has the policy
//! drop (Docker's `iptables -P FORWARD DROP`), no rule of ours helps. What IPVS sends to endpoints is
//! never forwarded, but their answers are, unless the client is a process of this node. So such a
//! chain has to accept established connections; this finds those that do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipvs_netlink::Error;
use ipvs_netlink::attr::{Attribute, attributes};
use ipvs_netlink::transport::{Message, Transport, protocols};

use super::sys::*;

/// Reads the forward chains of the network namespace in which this was opened; changes nothing.
#[derive(Debug)]
pub struct Forwarding {
    transport: Transport,
}

/// A chain that drops what is forwarded, and whose rules do not accept established connections.
///
/// What it accepts more narrowly, for one interface say, is not taken into account. The chains of
/// iptables-legacy are not in nf_tables, so they are never among these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Obstacle {
    chain: ChainId,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChainId {
    family: u8,
    table: String,
    name: String,
}

/// What a rule does with packets of established connections.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Accept,
    Jump(String),
    /// Something else, or only with some of them.
    Other,
}

/// The rules of a table's chains.
type Rules = BTreeMap<String, Vec<Step>>;

impl Forwarding {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
        })
    }

    /// The chains that stand in the way. Costs one dump of all chains, and one of the rules of each
    /// table with a forward chain of policy drop.
    ///
    /// # Errors
    /// Those of the socket and of the dumps.
    pub fn obstacles(&mut self) -> Result<BTreeSet<Obstacle>, Error> {
        let mut found = BTreeSet::new();
        for chain in self.dropping_chains()? {
            let rules = self.rules(&chain)?;
            if !accepts(&rules, &chain.name) {
                found.insert(Obstacle { chain });
            }
        }
        Ok(found)
    }

    fn dropping_chains(&mut self) -> Result<Vec<ChainId>, Error> {
        let mut chains = Vec::new();
        self.transport.dump(
            (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETCHAIN,
            "reading the packet filter's chains",
            |writer| writer.header(&[NFPROTO_UNSPEC, 0, 0, 0]),
            Vec::clear,
            &mut chains,
            |chains, message| {
                chains.extend(dropping_chain(message)?);
                Ok(())
            },
        )?;
        Ok(chains)
    }

    /// The rules of the table in which `chain` is.
    fn rules(&mut self, chain: &ChainId) -> Result<Rules, Error> {
        let mut rules = Rules::new();
        self.transport.dump(
            (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETRULE,
            "reading the rules of a forward chain",
            |writer| {
                writer.header(&[chain.family, 0, 0, 0]);
                writer.string(NFTA_RULE_TABLE, &chain.table);
            },
            Rules::clear,
            &mut rules,
            |rules, message| {
                let (mut name, mut step) = ("", Step::Other);
                for attribute in contents(message) {
                    let attribute = attribute?;
                    match attribute.kind {
                        NFTA_RULE_CHAIN => name = attribute.string()?,
                        NFTA_RULE_EXPRESSIONS => step = read_rule(&attribute)?,
                        _ => {}
                    }
                }
                rules.entry(name.into()).or_default().push(step);
                Ok(())
            },
        )?;
        Ok(rules)
    }
}

/// With the command that removes it.
impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChainId {
            family,
            table,
            name,
        } = &self.chain;
        let (family, iptables) = match *family {
            NFPROTO_IPV4 => ("ip", "iptables"),
            NFPROTO_IPV6 => ("ip6", "ip6tables"),
            _ => ("inet", ""),
        };
        write!(
            f,
            "chain {name} of table {family} {table} drops what is forwarded and has no rule for all \
             established connections: nobody but processes of this node is sure to hear the answers of \
             endpoints; all do after `"
        )?;
        // A rule of nft's in a table of iptables' would confuse iptables.
        if (&**table, &**name) == ("filter", "FORWARD") && !iptables.is_empty() {
            let state = "-m conntrack --ctstate ESTABLISHED,RELATED";
            write!(f, "{iptables} -I FORWARD {state} -j ACCEPT`")
        } else {
            let state = "ct state established,related";
            write!(f, "nft insert rule {family} {table} {name} {state} accept`")
        }
    }
}

/// Whether `chain`, or one that it jumps to, accepts established connections.
fn accepts(rules: &Rules, chain: &str) -> bool {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![chain]);
    while let Some(chain) = waiting.pop() {
        if !seen.insert(chain) {
            continue;
        }
        for step in rules.get(chain).into_iter().flatten() {
            match step {
                Step::Accept => return true,
                Step::Jump(next) => waiting.push(next),
                Step::Other => {}
            }
        }
    }
    false
}

fn contents(message: Message<'_>) -> impl Iterator<Item = Result<Attribute<'_>, Error>> {
    // After family, version and resource.
    attributes(message.payload.get(4..).unwrap_or_default())
}

fn dropping_chain(message: Message<'_>) -> Result<Option<ChainId>, Error> {
    let family = message.payload.first().copied().unwrap_or_default();
    let (mut table, mut name) = ("", "");
    let (mut hook, mut policy) = (None, None);
    for attribute in contents(message) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = attribute.string()?,
            NFTA_CHAIN_NAME => name = attribute.string()?,
            NFTA_CHAIN_POLICY => policy = Some(attribute.u32_be()?),
            NFTA_CHAIN_HOOK => {
                hook = find(attribute.nested(), NFTA_HOOK_HOOKNUM)?;
            }
            _ => {}
        }
    }
    let hook = hook.map(|hook| hook.u32_be()).transpose()?;
    let is_obstacle = [NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6].contains(&family)
        && hook == Some(NF_INET_FORWARD)
        && policy == Some(NF_DROP.cast_unsigned());
    Ok(is_obstacle.then(|| ChainId {
        family,
        table: table.into(),
        name: name.into(),
    }))
}

fn read_rule(expressions: &Attribute<'_>) -> Result<Step, Error> {
    let mut step = Step::Other;
    for item in expressions.nested() {
        let (mut name, mut data) = ("", None);
        for attribute in item?.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_EXPR_NAME => name = attribute.string()?,
                NFTA_EXPR_DATA => data = Some(attribute),
                _ => {}
            }
        }
        let part = |kind| match data {
            Some(data) => find(data.nested(), kind),
            None => Ok(None),
        };
        match name {
            "counter" | "cmp" => {}
            // The comparison is about what was loaded before, which is seen to here.
            "ct" => {
                let key = part(NFTA_CT_KEY)?.map(|key| key.u32_be()).transpose()?;
                if key != Some(NFT_CT_STATE) {
                    return Ok(Step::Other);
                }
            }
            "bitwise" => {
                let mask = part(NFTA_BITWISE_MASK)?;
                let mask = mask
                    .map(|it| find(it.nested(), NFTA_DATA_VALUE))
                    .transpose()?;
                let mask = mask.flatten().map(|mask| mask.u32()).transpose()?;
                if mask.is_some_and(|mask| mask & NF_CT_STATE_ESTABLISHED == 0) {
                    return Ok(Step::Other);
                }
            }
            // A set or a map of states, which nobody writes without the established ones.
            "lookup" => {
                if part(NFTA_LOOKUP_DREG)?.is_some() {
                    step = Step::Accept;
                }
            }
            // One of iptables' extensions.
            "match" => {
                let extension = part(NFTA_MATCH_NAME)?.map(|it| it.string()).transpose()?;
                if !matches!(extension, Some("conntrack" | "state" | "comment")) {
                    return Ok(Step::Other);
                }
            }
            "immediate" => step = read_verdict(part(NFTA_IMMEDIATE_DATA)?)?,
            _ => return Ok(Step::Other),
        }
    }
    Ok(step)
}

fn read_verdict(data: Option<Attribute<'_>>) -> Result<Step, Error> {
    let verdict = data
        .map(|it| find(it.nested(), NFTA_DATA_VERDICT))
        .transpose()?;
    let Some(verdict) = verdict.flatten() else {
        return Ok(Step::Other);
    };
    let code = find(verdict.nested(), NFTA_VERDICT_CODE)?;
    let code = code.map(|code| code.u32_be()).transpose()?;
    Ok(match code.map(u32::cast_signed) {
        Some(NF_ACCEPT) => Step::Accept,
        Some(NFT_JUMP | NFT_GOTO) => {
            let chain = find(verdict.nested(), NFTA_VERDICT_CHAIN)?;
            let chain = chain.map(|chain| chain.string()).transpose()?;
            Step::Jump(chain.unwrap_or_default().into())
        }
        _ => Step::Other,
    })
}

fn find<'a>(
    attributes: impl IntoIterator<Item = Result<Attribute<'a>, Error>>,
    kind: u16,
) -> Result<Option<Attribute<'a>>, Error> {
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == kind {
            return Ok(Some(attribute));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacle(family: u8, table: &str, name: &str) -> String {
        let chain = ChainId {
            family,
            table: table.into(),
            name: name.into(),
        };
        Obstacle { chain }.to_string()
    }

    #[test]
    fn the_command_is_of_the_tool_that_made_the_chain() {
        let words = obstacle(NFPROTO_IPV6, "filter", "FORWARD");
        assert!(words.contains("`ip6tables -I FORWARD -m"), "{words}");
        let words = obstacle(NFPROTO_INET, "filter", "FORWARD");
        assert!(
            words.contains("`nft insert rule inet filter FORWARD ct"),
            "{words}"
        );
    }

    #[test]
    fn jumps_are_followed_and_circles_left() {
        let rules = |step| {
            Rules::from([
                ("a".into(), vec![Step::Other, Step::Jump("b".into())]),
                (
                    "b".into(),
                    vec![Step::Jump("c".into()), Step::Jump("a".into())],
                ),
                ("c".into(), vec![step]),
            ])
        };
        assert!(accepts(&rules(Step::Accept), "a"));
        assert!(!accepts(&rules(Step::Other), "a"));
        assert!(!accepts(&Rules::new(), "a"));
    }
}
