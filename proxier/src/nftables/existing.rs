//! What the kernel has of a table, so that only what differs need be changed.
//!
//! To delete a table and make it anew in one transaction is not seamless: while the kernel finishes
//! it, chains that are on their way out still run, but the elements of their maps are gone
//! (`nf_tables_commit_chain_prepare` leaves inactive chains as they are), and packets are refused that
//! both tables would let through. To change the rules of a chain that stays is.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipvs_netlink::Error;
use ipvs_netlink::attr::{Attribute, Writer, find};
use ipvs_netlink::transport::{Message, Transport};
use rustix::io::Errno;

use super::expression::read_verdict;
use super::hash;
use super::message::{contents, message_type};
use super::rule::{Rule, Verdict};
use super::set::{Key, Set, SetKind};
use super::sys::*;
use super::table::{Chain, Table};

/// What the kernel has of the table `name`, as far as it is known from `wanted`; `None` when there is
/// no such table, or something in it that is none of ours.
///
/// Costs a dump of the table's chains, rules and sets, and one of the elements of each set.
///
/// # Errors
/// Those of the socket and of the dumps.
pub(super) fn read(
    transport: &mut Transport,
    name: &str,
    wanted: &Table,
) -> Result<Option<Table>, Error> {
    // One with flags is none of ours: a dormant one does nothing, for example.
    if flags(transport, name)? != Some(0) {
        return Ok(None);
    }
    let mut reader = Reader {
        transport,
        table: name,
        wanted,
    };
    let Some(mut table) = reader.chains()? else {
        return Ok(None);
    };
    reader.rules(&mut table)?;
    if !reader.sets(&mut table)? {
        return Ok(None);
    }
    for set in table.sets.values_mut() {
        if matches!(set.kind, SetKind::Learned { .. }) {
            continue;
        }
        let Some(elements) = reader.elements(set)? else {
            return Ok(None);
        };
        set.elements = elements;
    }
    Ok(Some(table))
}

/// The flags of the table `name`; `None` when there is no such table.
///
/// # Errors
/// The socket's, and the kernel's but for `ENOENT`.
pub(super) fn flags(transport: &mut Transport, name: &str) -> Result<Option<u32>, Error> {
    let answer = transport.query(
        message_type(NFT_MSG_GETTABLE),
        "looking for our table",
        |writer| {
            writer.header(&[NFPROTO_INET, 0, 0, 0]);
            writer.string(NFTA_TABLE_NAME, name);
        },
        |message| {
            let flags = find(contents(message.payload), NFTA_TABLE_FLAGS)?;
            flags.map_or(Ok(0), |flags| flags.u32_be())
        },
    );
    match answer {
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the userdata by which our rule is recognised: an item that nft ignores, with the rule's
/// hash.
pub(super) fn userdata(rule: &Rule) -> [u8; 10] {
    /// A kind without a meaning in libnftnl, which counts its own from 0.
    const KIND: u8 = 0xf0;
    let mut bytes = [KIND, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&hash::rule(rule).to_be_bytes());
    bytes
}

type Elements = BTreeMap<Key, Option<Verdict>>;

struct Reader<'a> {
    transport: &'a mut Transport,
    table: &'a str,
    wanted: &'a Table,
}

impl Reader<'_> {
    /// The table's chains, without rules; `None` when packets come through one that is not wanted so.
    fn chains(&mut self) -> Result<Option<Table>, Error> {
        let (name, wanted) = (self.table, self.wanted);
        let mut found = Some(Table::default());
        self.dump(
            NFT_MSG_GETCHAIN,
            "reading our chains",
            // The kernel lists the chains of all tables.
            |_| {},
            &mut found,
            |found| *found = Some(Table::default()),
            |found, message| {
                let Some((table, chain)) = read_chain(message.payload, name, wanted)? else {
                    return Ok(());
                };
                match (table.then_some(chain), &mut *found) {
                    (Some(chain), Some(found)) => found.add_chain(chain),
                    _ => *found = None,
                }
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// Gives the chains of `table` their rules: the wanted ones where all of them are there and no
    /// others, and something else where it is not so.
    fn rules(&mut self, table: &mut Table) -> Result<(), Error> {
        let name = self.table;
        let mut found: Vec<(Arc<str>, Box<[u8]>)> = Vec::new();
        self.dump(
            NFT_MSG_GETRULE,
            "reading our rules",
            |writer| writer.string(NFTA_RULE_TABLE, name),
            &mut found,
            Vec::clear,
            |found, message| {
                let (mut chain, mut data) = ("", &[][..]);
                for attribute in contents(message.payload) {
                    let attribute = attribute?;
                    match attribute.kind {
                        NFTA_RULE_CHAIN => chain = attribute.string()?,
                        NFTA_RULE_USERDATA => data = attribute.value,
                        _ => {}
                    }
                }
                found.push((chain.into(), data.into()));
                Ok(())
            },
        )?;
        let mut rules = found.into_iter().peekable();
        while let Some((name, first)) = rules.next() {
            let mut there = vec![first];
            while let Some((_, next)) = rules.next_if(|(chain, _)| *chain == name) {
                there.push(next);
            }
            let wanted = self
                .wanted
                .chains
                .get(&name)
                .map_or(&[][..], |it| &it.rules);
            let is_wanted = wanted.iter().map(userdata).eq(there.iter().map(|it| &**it));
            if let Some(chain) = table.chains.get_mut(&name) {
                chain.rules = match is_wanted {
                    true => wanted.to_vec(),
                    false => vec![Rule::new([]); there.len()],
                };
            }
        }
        Ok(())
    }

    /// Gives `table` its sets, without elements. Answers whether all of them are wanted so.
    fn sets(&mut self, table: &mut Table) -> Result<bool, Error> {
        let (name, wanted) = (self.table, self.wanted);
        let mut found = (Vec::new(), true);
        self.dump(
            NFT_MSG_GETSET,
            "reading our sets",
            |writer| writer.string(NFTA_SET_TABLE, name),
            &mut found,
            |found| *found = (Vec::new(), true),
            |(sets, are_wanted), message| {
                match read_set(message.payload, wanted)? {
                    Some(Some(set)) => sets.push(set),
                    Some(None) => *are_wanted = false,
                    // One of a rule.
                    None => {}
                }
                Ok(())
            },
        )?;
        let (sets, are_wanted) = found;
        sets.into_iter().for_each(|set| table.add_set(set));
        Ok(are_wanted)
    }

    /// The elements of `set`; `None` when some could not be read.
    fn elements(&mut self, set: &Set) -> Result<Option<Elements>, Error> {
        let (table, name) = (self.table, &set.name);
        let mut found = Some(Elements::new());
        self.dump(
            NFT_MSG_GETSETELEM,
            "reading the elements of a set of ours",
            |writer| {
                writer.string(NFTA_SET_ELEM_LIST_TABLE, table);
                writer.string(NFTA_SET_ELEM_LIST_SET, name);
            },
            &mut found,
            |found| *found = Some(Elements::new()),
            |found, message| {
                let list = find(contents(message.payload), NFTA_SET_ELEM_LIST_ELEMENTS)?;
                for element in list.iter().flat_map(Attribute::nested) {
                    match (read_element(&element?, set)?, &mut *found) {
                        (Some((key, data)), Some(found)) => drop(found.insert(key, data)),
                        _ => *found = None,
                    }
                }
                Ok(())
            },
        )?;
        Ok(found)
    }

    fn dump<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        found: &mut T,
        clear: impl Fn(&mut T),
        each: impl FnMut(&mut T, Message<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let body = |writer: &mut Writer<'_>| {
            writer.header(&[NFPROTO_INET, 0, 0, 0]);
            body(writer);
        };
        self.transport
            .dump(message_type(kind), doing, body, clear, found, each)
    }
}

/// A chain without rules, if it is in `table`, and whether packets come to it as is wanted.
fn read_chain(payload: &[u8], table: &str, wanted: &Table) -> Result<Option<(bool, Chain)>, Error> {
    let its_table = find(contents(payload), NFTA_CHAIN_TABLE)?;
    // To the kernel names are just bytes. A name in our table that cannot be read is none of ours.
    let is_ours = |its_table: Attribute<'_>| its_table.string().is_ok_and(|it| it == table);
    if !its_table.is_some_and(is_ours) {
        return Ok(None);
    }
    let (mut name, mut kind) = ("", "");
    let (mut hook, mut policy) = (None, None);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_NAME => name = attribute.string().unwrap_or_default(),
            NFTA_CHAIN_TYPE => kind = attribute.string()?,
            NFTA_CHAIN_POLICY => policy = Some(attribute.u32_be()?),
            NFTA_CHAIN_HOOK => {
                let part = |kind| find(attribute.nested(), kind);
                let number = part(NFTA_HOOK_HOOKNUM)?.map(|it| it.u32_be()).transpose()?;
                let priority = part(NFTA_HOOK_PRIORITY)?
                    .map(|it| it.u32_be())
                    .transpose()?;
                hook = number.zip(priority);
            }
            _ => {}
        }
    }
    let there = hook.map(|(number, priority)| (kind, number, priority.cast_signed(), policy));
    let accept = Some(NF_ACCEPT.cast_unsigned());
    let hook = wanted.chains.get(name).and_then(|chain| chain.hook);
    let should = hook.map(|hook| (hook.kind(), hook.number(), hook.priority(), accept));
    let chain = Chain {
        name: name.into(),
        hook,
        rules: Vec::new(),
    };
    Ok(Some((there == should, chain)))
}

/// A set without elements, or `None` inside when it is not wanted so; `None` for one without a name.
#[expect(clippy::option_option, reason = "two questions with an answer each")]
fn read_set(payload: &[u8], wanted: &Table) -> Result<Option<Option<Set>>, Error> {
    let (mut name, mut flags, mut key) = ("", 0, 0);
    let (mut timeout, mut size) = (None, None);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_SET_NAME => name = attribute.string().unwrap_or_default(),
            NFTA_SET_FLAGS => flags = attribute.u32_be()?,
            NFTA_SET_KEY_TYPE => key = attribute.u32_be()?,
            NFTA_SET_TIMEOUT => timeout = Some(u64::from_be_bytes(attribute.array()?)),
            NFTA_SET_DESC => size = find(attribute.nested(), NFTA_SET_DESC_SIZE)?,
            _ => {}
        }
    }
    if flags & NFT_SET_ANONYMOUS != 0 {
        return Ok(None);
    }
    let wanted = wanted.sets.get(name);
    let wanted = wanted.filter(|set| set.kind.flags() == flags && set.key_type() == key);
    let limits = timeout.zip(size.map(|size| size.u32_be()).transpose()?);
    let wanted = wanted.filter(|set| set.kind.limits() == limits);
    Ok(Some(wanted.map(|set| {
        Set::new(set.name.clone(), set.key.clone(), set.kind)
    })))
}

/// An element of `set`; `None` when it is none that a set of ours can have.
fn read_element(
    element: &Attribute<'_>,
    set: &Set,
) -> Result<Option<(Key, Option<Verdict>)>, Error> {
    let (mut key, mut data) = (None, None);
    for part in element.nested() {
        let part = part?;
        match part.kind {
            NFTA_SET_ELEM_KEY => key = find(part.nested(), NFTA_DATA_VALUE)?,
            NFTA_SET_ELEM_DATA => data = Some(part),
            _ => {}
        }
    }
    let key = key.and_then(|key| Key::decode(&set.key, key.value));
    let verdict = match (set.kind, data) {
        (SetKind::Set, None) => Some(None),
        (SetKind::Verdicts, Some(data)) => read_verdict(&data)?.map(Some),
        _ => None,
    };
    Ok(key.zip(verdict))
}
