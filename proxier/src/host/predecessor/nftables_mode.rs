//! What kube-proxy's nftables mode serves, read from its tables.
//!
//! ```text
//!  service-ips, service-nodeports ─▶ chain of a Service port ─▶ chains, anonymous maps ─▶ destination NAT
//! ```
//!
//! A chain of an external address tells clients apart: rules for Pods and for the node come first, and what follows is for
//! all others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use netlink::Result;
use netlink::attr::{Attribute, find};
use netlink::transport::{Transport, protocols};
use nftables::raw::{contents, message_type, read_elements, read_verdict};
use nftables::sys::*;
use nftables::{Key, KeyType, Set, SetKind, Value, Verdict};
use rustix::io::Errno;

use crate::cluster::model::{Family, Protocol};
use crate::dataplane::nftables::frontend;
use crate::plan::frontend::Frontend;

/// The name of the tables, of families `ip` and `ip6`.
const TABLE: &str = "kube-proxy";

/// The deepest path from a frontend to an endpoint: external address, Service port, endpoint.
const DEPTH: usize = 4;

/// What kube-proxy serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NftablesMode {
    /// The addresses of Services. Those that reject all clients have no endpoint.
    pub(crate) frontends: BTreeMap<Frontend, Reached>,
    /// The node ports, by family, protocol and port.
    pub(crate) node_ports: BTreeMap<(Family, Protocol, u16), Reached>,
    /// The addresses that serve node ports, by family; a missing family serves them at all addresses.
    pub(crate) node_addresses: BTreeMap<Family, BTreeSet<IpAddr>>,
}

/// What clients of a frontend reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    /// The endpoints of any client.
    pub(crate) all: BTreeSet<SocketAddr>,
    /// The endpoints of clients outside the cluster.
    pub(crate) outside: BTreeSet<SocketAddr>,
    /// The timeout of session affinity.
    pub(crate) affinity_secs: Option<u64>,
}

impl NftablesMode {
    /// Reads the tables; `None` if there are none.
    ///
    /// # Cost
    /// A dump of the rules, and one of each map: with kube-proxy 1.36, one for every Service port.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub(crate) fn read() -> Result<Option<Self>> {
        let mut transport = match Transport::open(protocols::NETLINK_NETFILTER) {
            // No nfnetlink (`netlink_create`), no tables.
            Err(error) if error.errno() == Some(Errno::PROTONOSUPPORT) => return Ok(None),
            other => other?,
        };
        let mut mode = Self::default();
        let mut is_found = false;
        for family in [Family::V4, Family::V6] {
            if let Some(table) = Table::read(&mut transport, family)? {
                is_found = true;
                table.add_to(&mut mode, &mut transport)?;
            }
        }
        Ok(is_found.then_some(mode))
    }

    /// Returns what clients of `frontend` reach; `None` if it is not served.
    pub(crate) fn reached(&self, frontend: &Frontend, is_node_port: bool) -> Option<&Reached> {
        if !is_node_port {
            return self.frontends.get(frontend);
        }
        let key = (frontend.family(), frontend.protocol, frontend.port);
        self.node_ports.get(&key)
    }

    /// Returns whether an address of the node serves node ports.
    pub(crate) fn has_node_ports_at(&self, address: IpAddr) -> bool {
        let addresses = self.node_addresses.get(&address.into());
        addresses.is_none_or(|all| all.contains(&address))
    }
}

/// The table of one family.
struct Table {
    family: Family,
    rules: BTreeMap<String, Vec<Rule>>,
    /// The timeout of each set of clients with session affinity, in seconds.
    affinity: BTreeMap<String, u64>,
    has_node_addresses: bool,
}

/// What a rule does with the packets that it matches.
#[derive(Debug, Default)]
struct Rule {
    /// Whether it matches only packets of some clients.
    is_for_some: bool,
    /// The chain or endpoint to which it leads.
    verdict: Option<Verdict>,
    target: Option<SocketAddr>,
    /// The maps that lead to a chain or an endpoint, and the sets that it reads or updates.
    verdict_maps: Vec<String>,
    target_maps: Vec<String>,
    sets: Vec<String>,
}

impl Table {
    /// Reads the rules and the names of sets; `None` if there is no table.
    fn read(transport: &mut Transport, family: Family) -> Result<Option<Self>> {
        let sets = dump(transport, family, NFT_MSG_GETSET, "sets", |payload| {
            let (mut name, mut timeout) = (String::new(), 0);
            for attribute in contents(payload) {
                let attribute = attribute?;
                match attribute.kind {
                    NFTA_SET_NAME => name = attribute.string()?.to_owned(),
                    NFTA_SET_TIMEOUT => timeout = u64::from_be_bytes(attribute.array()?),
                    _ => {}
                }
            }
            Ok(Some((name, timeout / 1_000)))
        });
        let sets = match sets {
            Err(error) if error.errno() == Some(Errno::NOENT) || error.is_invalid() => {
                return Ok(None);
            }
            other => other?,
        };
        let mut rules = BTreeMap::<String, Vec<Rule>>::new();
        let found = dump(transport, family, NFT_MSG_GETRULE, "rules", |payload| {
            let chain = find(contents(payload), NFTA_RULE_CHAIN)?;
            let chain = chain.map(|chain| chain.string().map(str::to_owned));
            let rule = Rule::read(payload, family)?;
            Ok(chain.transpose()?.zip(Some(rule)))
        })?;
        for (chain, rule) in found {
            rules.entry(chain).or_default().push(rule);
        }
        // A kernel may list nothing for a missing table.
        if sets.is_empty() && rules.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            family,
            rules,
            has_node_addresses: sets.iter().any(|(name, _)| name == "nodeport-ips"),
            affinity: sets.into_iter().filter(|(_, secs)| *secs > 0).collect(),
        }))
    }

    /// Adds what the table serves to `mode`.
    fn add_to(&self, mode: &mut NftablesMode, transport: &mut Transport) -> Result<()> {
        let address = KeyType::Address(self.family);
        let service = [address, KeyType::Protocol, KeyType::Port];
        let node_port = [KeyType::Protocol, KeyType::Port];
        // In this order, because a frontend that rejects some clients is in both maps.
        for name in ["no-endpoint-services", "service-ips"] {
            for (key, verdict) in self.verdicts(transport, name, &service)? {
                if let Some(frontend) = frontend(&key) {
                    let reached = self.reached(transport, &verdict)?;
                    mode.frontends.insert(frontend, reached);
                }
            }
        }
        for name in ["no-endpoint-nodeports", "service-nodeports"] {
            for (key, verdict) in self.verdicts(transport, name, &node_port)? {
                if let [Value::Protocol(protocol), Value::Port(port)] =
                    key.parts().collect::<Vec<_>>()[..]
                {
                    let reached = self.reached(transport, &verdict)?;
                    mode.node_ports
                        .insert((self.family, protocol, port), reached);
                }
            }
        }
        if self.has_node_addresses {
            let set = Set::new("nodeport-ips", [address], SetKind::Set);
            let found = self.elements(transport, &set)?;
            let addresses =
                found
                    .elements()
                    .filter_map(|element| match element.key.parts().next() {
                        Some(Value::V4(address)) => Some(IpAddr::from(address)),
                        Some(Value::V6(address)) => Some(address.into()),
                        _ => None,
                    });
            mode.node_addresses.insert(self.family, addresses.collect());
        }
        Ok(())
    }

    fn elements(&self, transport: &mut Transport, set: &Set) -> Result<Set> {
        match read_elements(transport, number(self.family), TABLE, set) {
            // kube-proxy replaced the map meanwhile.
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(set.without_elements()),
            other => Ok(other?.unwrap_or_else(|| set.without_elements())),
        }
    }

    fn verdicts(
        &self,
        transport: &mut Transport,
        map: &str,
        key: &[KeyType],
    ) -> Result<Vec<(Key, Verdict)>> {
        let found = self.elements(transport, &Set::new(map, key, SetKind::Verdicts))?;
        let elements = found.elements();
        Ok(elements
            .filter_map(|element| Some((element.key, element.verdict?)))
            .collect())
    }

    /// Returns what clients reach by `verdict`.
    fn reached(&self, transport: &mut Transport, verdict: &Verdict) -> Result<Reached> {
        let mut reached = Reached::default();
        if let Some(chain) = chain_of(verdict) {
            self.walk(transport, chain, true, &mut reached, DEPTH)?;
        }
        Ok(reached)
    }

    /// Adds what the rules of `chain` lead to. `for_outside` tells whether clients outside the cluster reach the chain.
    fn walk(
        &self,
        transport: &mut Transport,
        chain: &str,
        for_outside: bool,
        reached: &mut Reached,
        depth: usize,
    ) -> Result<()> {
        let Some(depth) = depth.checked_sub(1) else {
            return Ok(());
        };
        for rule in self.rules.get(chain).into_iter().flatten() {
            let for_outside = for_outside && !rule.is_for_some;
            let mut targets: Vec<SocketAddr> = rule.target.into_iter().collect();
            let mut chains: Vec<String> = Vec::new();
            chains.extend(rule.verdict.as_ref().and_then(chain_of).map(str::to_owned));
            for name in &rule.target_maps {
                let map = Set::new(
                    name.as_str(),
                    [KeyType::Mark],
                    SetKind::Targets(self.family),
                );
                let found = self.elements(transport, &map)?;
                targets.extend(found.targets().map(|(_, target)| target));
            }
            for name in &rule.verdict_maps {
                let verdicts = self.verdicts(transport, name, &[KeyType::Mark])?;
                let verdicts = verdicts.iter();
                chains.extend(verdicts.filter_map(|(_, it)| chain_of(it).map(str::to_owned)));
            }
            reached.all.extend(&targets);
            if for_outside {
                reached.outside.extend(&targets);
            }
            let timeout = rule.sets.iter().find_map(|set| self.affinity.get(set));
            if reached.affinity_secs.is_none() {
                reached.affinity_secs = timeout.copied();
            }
            for chain in chains {
                self.walk(transport, &chain, for_outside, reached, depth)?;
            }
        }
        Ok(())
    }
}

impl Rule {
    fn read(payload: &[u8], family: Family) -> Result<Self> {
        let mut rule = Self::default();
        // The constants of `dnat to ADDRESS:PORT`, in the order in which they are loaded.
        let mut constants = Vec::new();
        let expressions = find(contents(payload), NFTA_RULE_EXPRESSIONS)?;
        for expression in expressions.iter().flat_map(Attribute::nested) {
            let expression = expression?;
            let name = find(expression.nested(), NFTA_EXPR_NAME)?;
            let Some(data) = find(expression.nested(), NFTA_EXPR_DATA)? else {
                continue;
            };
            let part = |kind| find(data.nested(), kind);
            match name.map(|name| name.string()).transpose()? {
                Some("payload") => rule.is_for_some |= is_source(&data, family)?,
                Some("fib") => rule.is_for_some = true,
                Some("meta") => {
                    let key = part(NFTA_META_KEY)?.map(|key| key.u32_be()).transpose()?;
                    rule.is_for_some |= key == Some(NFT_META_IIFNAME);
                }
                Some("lookup") => {
                    let Some(set) = part(NFTA_LOOKUP_SET)? else {
                        continue;
                    };
                    let set = set.string()?.to_owned();
                    let into = part(NFTA_LOOKUP_DREG)?.map(|it| it.u32_be()).transpose()?;
                    match into {
                        None => rule.sets.push(set),
                        Some(NFT_REG_VERDICT) => rule.verdict_maps.push(set),
                        Some(_) => rule.target_maps.push(set),
                    }
                }
                Some("dynset") => {
                    let set = part(NFTA_DYNSET_SET_NAME)?;
                    let set = set.map(|set| set.string().map(str::to_owned));
                    rule.sets.extend(set.transpose()?);
                }
                Some("immediate") => {
                    if let Some(data) = part(NFTA_IMMEDIATE_DATA)? {
                        rule.verdict = rule.verdict.take().or(read_verdict(&data)?);
                        let value = find(data.nested(), NFTA_DATA_VALUE)?;
                        constants.extend(value.map(|value| value.value.to_vec()));
                    }
                }
                Some("nat") => rule.target = target(&constants),
                _ => {}
            }
        }
        Ok(rule)
    }
}

/// Returns the target of these constants: an address and a port.
fn target(constants: &[Vec<u8>]) -> Option<SocketAddr> {
    let [address, port] = constants else {
        return None;
    };
    let address: IpAddr = match address.len() {
        4 => <[u8; 4]>::try_from(&address[..]).ok()?.into(),
        _ => <[u8; 16]>::try_from(&address[..]).ok()?.into(),
    };
    let port = u16::from_be_bytes(port.first_chunk().copied()?);
    Some((address, port).into())
}

/// Returns whether a payload expression loads the source address, or the first bytes of it.
fn is_source(data: &Attribute<'_>, family: Family) -> Result<bool> {
    let number = |kind| -> Result<Option<u32>> {
        let found = find(data.nested(), kind)?;
        found.map(|found| found.u32_be()).transpose()
    };
    let source = match family {
        Family::V4 => 12..16,
        Family::V6 => 8..24,
    };
    let offset = number(NFTA_PAYLOAD_OFFSET)?;
    let is_in_header = number(NFTA_PAYLOAD_BASE)? == Some(NFT_PAYLOAD_NETWORK_HEADER);
    Ok(is_in_header && offset.is_some_and(|offset| source.contains(&offset)))
}

fn chain_of(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
        _ => None,
    }
}

/// Dumps objects of kube-proxy's table.
fn dump<T>(
    transport: &mut Transport,
    family: Family,
    kind: u16,
    what: &str,
    read: impl Fn(&[u8]) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    let doing = format!("reading the {what} of kube-proxy's nftables mode");
    let listed = transport.list(
        message_type(kind),
        &doing,
        |writer| {
            writer.header(&[number(family), 0, 0, 0]);
            // `NFTA_RULE_TABLE` has the same number.
            writer.string(NFTA_SET_TABLE, TABLE);
        },
        read,
    );
    match listed {
        // Before 6.7, the kernel lists no rules of a missing table, and refuses to list its sets.
        Err(error) if error.errno() == Some(Errno::NOENT) && kind == NFT_MSG_GETRULE => {
            Ok(Vec::new())
        }
        other => other,
    }
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => NFPROTO_IPV4,
        Family::V6 => NFPROTO_IPV6,
    }
}
