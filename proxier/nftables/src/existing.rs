//! Reading our table back from the kernel, so that only differences need be written.
//!
//! Replacing the whole table in one transaction would affect packets: while the kernel commits, the old
//! chains still run, but the elements of their maps are already gone
//! (`nf_tables_commit_chain_prepare` does not touch chains that are deleted). So packets are rejected
//! that both tables accept. Changing the rules of a kept chain has no such moment.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use net::Family;
use netlink::Error;
use netlink::attr::{Attribute, Writer, find};
use netlink::transport::Transport;
use rustix::io::Errno;

use crate::expression::read_verdict;
use crate::hash;
use crate::key::Key;
use crate::message::{contents, message_type};
use crate::rule::Rule;
use crate::set::{Element, Set, SetKind};
use crate::sys::*;
use crate::table::{Chain, Table};

/// Reads the table `name`; `None` if it is missing or has something that our tables never have.
///
/// Rules are recognised by their userdata, not decoded. A chain with other rules than in `wanted` gets
/// as many empty rules, so that it differs. Costs a dump of the table's chains, rules and sets, and one
/// of the elements of each set.
///
/// # Errors
/// Those of the socket and of the dumps.
pub(crate) fn read(
    transport: &mut Transport,
    name: &str,
    wanted: &Table,
) -> Result<Option<Table>, Error> {
    // Our table has no flags. With `NFT_TABLE_F_DORMANT`, for example, its chains do not run.
    if flags(transport, NFPROTO_INET, name)? != Some(0) {
        return Ok(None);
    }
    let Some(mut table) = read_family(transport, NFPROTO_INET, name, wanted)? else {
        return Ok(None);
    };
    table.arp = match (flags(transport, NFPROTO_ARP, name)?, &wanted.arp) {
        (None, _) => None,
        // It will be deleted, whatever it contains.
        (Some(_), None) => Some(Box::default()),
        (Some(0), Some(wanted)) => match read_family(transport, NFPROTO_ARP, name, wanted)? {
            Some(arp) => Some(Box::new(arp)),
            None => return Ok(None),
        },
        (Some(_), Some(_)) => return Ok(None),
    };
    Ok(Some(table))
}

/// Reads the table of one family; `None` if it has something that our tables never have.
fn read_family(
    transport: &mut Transport,
    family: u8,
    name: &str,
    wanted: &Table,
) -> Result<Option<Table>, Error> {
    let mut reader = Reader {
        transport,
        family,
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
        // Packets fill these sets, so no plan has their elements.
        if set.kind.is_learned() {
            continue;
        }
        match with_elements(reader.transport, reader.family, name, set)? {
            Some(found) => *set = found,
            None => return Ok(None),
        }
    }
    Ok(Some(table))
}

/// Reads the flags of the table `name` of `family`; `None` if it is missing.
///
/// # Errors
/// Those of the socket and of the kernel, except `ENOENT`.
pub(crate) fn flags(
    transport: &mut Transport,
    family: u8,
    name: &str,
) -> Result<Option<u32>, Error> {
    let answer = transport.query(
        message_type(NFT_MSG_GETTABLE),
        "looking for our table",
        |writer| {
            writer.header(&[family, 0, 0, 0]);
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

/// Returns `set` of the table `table` with its elements; `None` if such a set of ours cannot have one of them.
///
/// # Errors
/// Those of the socket and of the dump; `ENOENT` if the set does not exist.
pub fn with_elements(
    transport: &mut Transport,
    family: u8,
    table: &str,
    set: &Set,
) -> Result<Option<Set>, Error> {
    let mut found = Some(set.without_elements());
    dump_elements(
        transport,
        (family, table, &set.name),
        |found| *found = Some(set.without_elements()),
        &mut found,
        |found, element| {
            let is_ours = match found {
                Some(found) => read_element(element, found)?,
                None => false,
            };
            if !is_ours {
                *found = None;
            }
            Ok(())
        },
    )?;
    Ok(found)
}

/// Calls `each` for every element of a set, named by family, table and set. If the set changes meanwhile, calls `restart`
/// and begins again.
///
/// # Errors
/// Those of the socket, of the dump and of `each`; `ENOENT` if the set does not exist.
pub(crate) fn dump_elements<S>(
    transport: &mut Transport,
    (family, table, set): (u8, &str, &str),
    restart: impl Fn(&mut S),
    state: &mut S,
    mut each: impl FnMut(&mut S, &Attribute<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    // Not by `list`: a second copy of the elements of a large table would double the memory.
    transport.dump(
        message_type(NFT_MSG_GETSETELEM),
        "reading the elements of a set of ours",
        |writer| {
            writer.header(&[family, 0, 0, 0]);
            writer.string(NFTA_SET_ELEM_LIST_TABLE, table);
            writer.string(NFTA_SET_ELEM_LIST_SET, set);
        },
        restart,
        state,
        |state, message| {
            let list = find(contents(message.payload), NFTA_SET_ELEM_LIST_ELEMENTS)?;
            for element in list.iter().flat_map(Attribute::nested) {
                each(state, &element?)?;
            }
            Ok(())
        },
    )?;
    Ok(())
}

/// Returns the userdata by which our rule is recognised: an item that nft ignores, with the rule's
/// hash.
pub(crate) fn userdata(rule: &Rule) -> [u8; 10] {
    /// A kind without a meaning in libnftnl, which counts its own from 0.
    const KIND: u8 = 0xf0;
    let mut bytes = [KIND, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&hash::rule(rule).to_be_bytes());
    bytes
}

struct Reader<'a> {
    transport: &'a mut Transport,
    family: u8,
    table: &'a str,
    wanted: &'a Table,
}

impl Reader<'_> {
    /// Reads the chains without their rules; `None` if one has another hook than the wanted chain.
    fn chains(&mut self) -> Result<Option<Table>, Error> {
        let (name, wanted) = (self.table, self.wanted);
        let chains = self.list(
            NFT_MSG_GETCHAIN,
            "reading our chains",
            // The kernel ignores a table's name here and dumps the chains of all tables.
            |_| {},
            |payload| read_chain(payload, name, wanted),
        )?;
        let mut found = Table::default();
        for (has_wanted_hook, chain) in chains {
            if !has_wanted_hook {
                return Ok(None);
            }
            found.add_chain(chain);
        }
        Ok(Some(found))
    }

    /// Reads the rules into the chains of `table`: the wanted rules if the chain has exactly these, else
    /// as many empty rules.
    fn rules(&mut self, table: &mut Table) -> Result<(), Error> {
        let name = self.table;
        let found: Vec<(Arc<str>, Box<[u8]>)> = self.list(
            NFT_MSG_GETRULE,
            "reading our rules",
            |writer| writer.string(NFTA_RULE_TABLE, name),
            |payload| {
                let (mut chain, mut data) = ("", &[][..]);
                for attribute in contents(payload) {
                    let attribute = attribute?;
                    match attribute.kind {
                        NFTA_RULE_CHAIN => chain = attribute.string()?,
                        NFTA_RULE_USERDATA => data = attribute.value,
                        _ => {}
                    }
                }
                Ok(Some((chain.into(), data.into())))
            },
        )?;
        // The kernel dumps the rules of a chain one after the other.
        for run in found.chunk_by(|(one, _), (next, _)| one == next) {
            let Some((name, _)) = run.first() else {
                continue;
            };
            if let Some(chain) = table.chains.get_mut(name) {
                let wanted = self.wanted.chains.get(name);
                chain.rules = recognise(run, wanted.map_or(&[][..], |chain| &chain.rules));
            }
        }
        Ok(())
    }

    /// Reads the sets into `table` without their elements. Returns whether all have wanted definitions.
    fn sets(&mut self, table: &mut Table) -> Result<bool, Error> {
        let (name, wanted) = (self.table, self.wanted);
        let sets = self.list(
            NFT_MSG_GETSET,
            "reading our sets",
            |writer| writer.string(NFTA_SET_TABLE, name),
            |payload| read_set(payload, wanted).map(Some),
        )?;
        for set in sets {
            match set {
                ExistingSet::Wanted(set) => table.add_set(set),
                ExistingSet::Other => return Ok(false),
                ExistingSet::Anonymous => {}
            }
        }
        Ok(true)
    }

    fn list<T>(
        &mut self,
        kind: u16,
        doing: &str,
        body: impl Fn(&mut Writer<'_>),
        read: impl Fn(&[u8]) -> Result<Option<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        let family = self.family;
        let body = |writer: &mut Writer<'_>| {
            writer.header(&[family, 0, 0, 0]);
            body(writer);
        };
        self.transport.list(message_type(kind), doing, body, read)
    }
}

/// Returns the `wanted` rules if the chain has exactly these, by their userdata, else as many empty
/// rules as it has.
fn recognise(existing: &[(Arc<str>, Box<[u8]>)], wanted: &[Rule]) -> Vec<Rule> {
    let existing_data = existing.iter().map(|(_, data)| &**data);
    match wanted.iter().map(userdata).eq(existing_data) {
        true => wanted.to_vec(),
        false => vec![Rule::new([]); existing.len()],
    }
}

/// Reads a chain and whether it has the wanted hook; `None` if it is in another table.
fn read_chain(payload: &[u8], table: &str, wanted: &Table) -> Result<Option<(bool, Chain)>, Error> {
    let its_table = find(contents(payload), NFTA_CHAIN_TABLE)?;
    // The kernel accepts names of any bytes. A name that is not UTF-8 is not ours.
    let is_ours = |name: Attribute<'_>| name.string().is_ok_and(|name| name == table);
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
                let number = part(NFTA_HOOK_HOOKNUM)?;
                let priority = part(NFTA_HOOK_PRIORITY)?;
                hook = match (number, priority) {
                    (Some(number), Some(priority)) => Some((number.u32_be()?, priority.u32_be()?)),
                    _ => None,
                };
            }
            _ => {}
        }
    }
    let existing = hook.map(|(number, priority)| (kind, number, priority.cast_signed(), policy));
    let accept = Some(NF_ACCEPT.cast_unsigned());
    let hook = wanted.chains.get(name).and_then(|chain| chain.hook);
    let expected = hook.map(|hook| (hook.kind(), hook.number(), hook.priority(), accept));
    let chain = Chain {
        name: name.into(),
        hook,
        rules: Vec::new(),
    };
    Ok(Some((existing == expected, chain)))
}

/// A set of our table in the kernel, without its elements.
enum ExistingSet {
    /// It has the wanted definition.
    Wanted(Set),
    /// It has another definition, or should not exist.
    Other,
    /// It belongs to a rule, which is compared instead.
    Anonymous,
}

/// Reads a set without its elements.
fn read_set(payload: &[u8], wanted: &Table) -> Result<ExistingSet, Error> {
    let (mut name, mut flags, mut key) = ("", 0, 0);
    let (mut data, mut timeout, mut size) = (None, None, None);
    let mut counts = false;
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_SET_NAME => name = attribute.string().unwrap_or_default(),
            NFTA_SET_FLAGS => flags = attribute.u32_be()?,
            NFTA_SET_KEY_TYPE => key = attribute.u32_be()?,
            NFTA_SET_DATA_TYPE => data = Some(attribute.u32_be()?),
            NFTA_SET_TIMEOUT => timeout = Some(u64::from_be_bytes(attribute.array()?)),
            // No other program writes our table, so the expression is our counter.
            NFTA_SET_EXPR => counts = true,
            NFTA_SET_DESC => size = find(attribute.nested(), NFTA_SET_DESC_SIZE)?,
            _ => {}
        }
    }
    if flags & NFT_SET_ANONYMOUS != 0 {
        return Ok(ExistingSet::Anonymous);
    }
    let wanted = wanted.sets.get(name);
    let wanted = wanted.filter(|set| set.kind.flags() == flags && set.key_type() == key);
    let size = size.map(|size| size.u32_be()).transpose()?;
    let wanted = wanted.filter(|set| {
        let wanted_data = set.kind.data_type().map(|(number, _)| number);
        let is_same = (set.kind == SetKind::CountingSet) == counts;
        is_same && (wanted_data, set.kind.timeout(), set.kind.size()) == (data, timeout, size)
    });
    Ok(match wanted {
        Some(set) => ExistingSet::Wanted(set.without_elements()),
        None => ExistingSet::Other,
    })
}

/// Reads an element into `set`. Returns whether such a set of ours can have it.
fn read_element(element: &Attribute<'_>, set: &mut Set) -> Result<bool, Error> {
    if let SetKind::Targets(family) = set.kind {
        let target = read_target(element, set, family)?;
        if let Some((key, target)) = &target {
            set.insert_target(key.clone(), *target);
        }
        return Ok(target.is_some());
    }
    let (key, data) = key_and_data(element, set)?;
    let verdict = match (set.kind, data) {
        (SetKind::Set | SetKind::CountingSet, None) => Some(None),
        (SetKind::Verdicts, Some(data)) => read_verdict(&data)?.map(Some),
        _ => None,
    };
    let element = key.zip(verdict);
    let element = element.map(|(key, verdict)| Element { key, verdict });
    let is_ours = element.is_some();
    element.into_iter().for_each(|element| set.insert(element));
    Ok(is_ours)
}

/// Reads an element of a map of targets; `None` if such a map of ours cannot have it.
pub(crate) fn read_target(
    element: &Attribute<'_>,
    map: &Set,
    family: Family,
) -> Result<Option<(Key, SocketAddr)>, Error> {
    let (key, data) = key_and_data(element, map)?;
    let Some(data) = data else {
        return Ok(None);
    };
    let target = find(data.nested(), NFTA_DATA_VALUE)?;
    let target = target.and_then(|target| decode_target(family, target.value));
    Ok(key.zip(target))
}

pub(crate) fn key_and_data<'a>(
    element: &Attribute<'a>,
    set: &Set,
) -> Result<(Option<Key>, Option<Attribute<'a>>), Error> {
    let (mut key, mut data) = (None, None);
    for part in element.nested() {
        let part = part?;
        match part.kind {
            NFTA_SET_ELEM_KEY => key = find(part.nested(), NFTA_DATA_VALUE)?,
            NFTA_SET_ELEM_DATA => data = Some(part),
            _ => {}
        }
    }
    Ok((key.and_then(|key| Key::decode(&set.key, key.value)), data))
}

/// Returns the target with these bytes.
fn decode_target(family: Family, bytes: &[u8]) -> Option<SocketAddr> {
    // A port, padded to 4 bytes, follows the address.
    let (address, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    let port = u16::from_be_bytes(port.first_chunk().copied()?);
    let address: IpAddr = match family {
        Family::V4 => <[u8; 4]>::try_from(address).ok()?.into(),
        Family::V6 => <[u8; 16]>::try_from(address).ok()?.into(),
    };
    Some((address, port).into())
}
