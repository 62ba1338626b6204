//! The netlink messages of a transaction.

use std::borrow::Borrow;
use std::net::SocketAddr;
use std::ops::Range;

use netlink::Result;
use netlink::attr::{Attribute, Writer, attributes};
use netlink::batch::Batch;
use netlink::{NLM_F_APPEND, NLM_F_CREATE};

use crate::anonymous::{AnonymousSet, anonymous_sets};
use crate::command::Command;
use crate::existing::userdata;
use crate::expression::{write_rule, write_verdict};
use crate::key::Key;
use crate::rule::Rule;
use crate::set::{Data, Set, SetKind};
use crate::sys::*;
use crate::table::Hook;
use crate::value::{KeyBytes, KeyType, Value};

/// The maximum number of elements in a message. Their attribute has at most 65,535 bytes, and an element takes
/// less than 400.
const ELEMENTS_PER_MESSAGE: usize = 128;

/// The table from which a transaction starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The existing table.
    Existing,
    /// A new table; existing ones of that name are deleted.
    New(ExistingArp),
    /// A new table that the kernel deletes when the socket is closed; an existing one of that name is deleted.
    Owned,
    /// The existing tables without rules.
    Emptied(ExistingArp),
    /// No table; existing ones are deleted.
    Deleted(ExistingArp),
}

/// Whether the kernel has a table of family `arp` with our name.
///
/// A kernel without that family refuses each message about it, even a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExistingArp {
    Present,
    Missing,
}

/// The rule for grouping commands into messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// A message carries many elements of one set, but only one of other commands.
    ManyElements,
    /// A message carries one command, so that the kernel's refusal names it.
    OneCommand,
}

impl Grouping {
    /// Returns whether one message can carry the commands `group` and `next`.
    fn admits(self, group: &[impl Borrow<Command>], next: &Command) -> bool {
        let Some(first) = group.first() else {
            return true;
        };
        match self {
            Self::ManyElements => {
                group.len() < ELEMENTS_PER_MESSAGE && fit_together(first.borrow(), next)
            }
            Self::OneCommand => false,
        }
    }
}

/// An encoded transaction.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) batch: Batch,
    /// The indices of the commands that each message carries; an empty range for other messages.
    pub(crate) subjects: Vec<Range<usize>>,
}

/// Encodes a transaction. The kernel refuses it unless `generation` is the current one, or `None`.
pub(crate) fn transaction(
    table: &str,
    base: Base,
    commands: impl IntoIterator<Item: Borrow<Command>>,
    generation: Option<u32>,
    grouping: Grouping,
) -> Result<Transaction> {
    let mut encoder = Encoder {
        table,
        family: NFPROTO_INET,
        batch: Batch::new(),
        subjects: Vec::new(),
        encoded: 0,
        next_id: 1,
    };
    encoder.frame(NFNL_MSG_BATCH_BEGIN, |writer| {
        if let Some(generation) = generation {
            writer.u32_be(NFNL_BATCH_GENID, generation);
        }
    })?;
    match base {
        Base::Existing => {}
        Base::New(arp) => {
            encoder.existing(NFT_MSG_DELTABLE, arp)?;
            encoder.table(NFT_MSG_NEWTABLE, 0..0)?;
        }
        Base::Owned => {
            encoder.existing(NFT_MSG_DELTABLE, ExistingArp::Missing)?;
            encoder.message(NFT_MSG_NEWTABLE, 0, 0..0, |writer| {
                writer.string(NFTA_TABLE_NAME, table);
                writer.u32_be(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
            })?;
        }
        Base::Emptied(arp) => encoder.existing(NFT_MSG_DELRULE, arp)?,
        Base::Deleted(arp) => encoder.existing(NFT_MSG_DELTABLE, arp)?,
    }
    let mut group = Vec::new();
    for command in commands {
        if !grouping.admits(&group, command.borrow()) {
            encoder.commands(&group)?;
            group.clear();
        }
        group.push(command);
    }
    encoder.commands(&group)?;
    encoder.frame(NFNL_MSG_BATCH_END, |_| {})?;
    Ok(Transaction {
        batch: encoder.batch,
        subjects: encoder.subjects,
    })
}

/// Returns the number of bytes of the transaction with these commands.
///
/// # Errors
/// [`netlink::Error::TooLong`] if a name does not fit an attribute.
pub fn transaction_length(
    table: &str,
    commands: impl IntoIterator<Item = Command>,
) -> Result<usize> {
    let encoded = transaction(
        table,
        Base::Existing,
        commands,
        Some(0),
        Grouping::ManyElements,
    )?;
    Ok(encoded.batch.as_bytes().len())
}

/// Returns the netlink type of an nf_tables message such as [`NFT_MSG_NEWRULE`].
pub fn message_type(kind: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES << 8) | kind
}

/// Appends the begin or the end of a transaction.
pub(crate) fn frame(
    batch: &mut Batch,
    kind: u16,
    body: impl FnOnce(&mut Writer<'_>),
) -> Result<()> {
    batch.push(kind, 0, |writer| {
        // In these messages `res_id` of `struct nfgenmsg` is the subsystem.
        let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
        writer.header(&[NFPROTO_UNSPEC, 0, high, low]);
        body(writer);
    })
}

/// Returns the attributes of an nf_tables message, which follow its `struct nfgenmsg`.
pub fn contents(payload: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>>> {
    attributes(payload.get(4..).unwrap_or_default())
}

/// Returns whether one message can carry both commands: both add to the same set, or both delete from
/// it.
fn fit_together(one: &Command, other: &Command) -> bool {
    match (one, other) {
        (Command::AddElement(one, _), Command::AddElement(other, _))
        | (Command::AddTarget(one, ..), Command::AddTarget(other, ..))
        | (Command::DeleteElement(one, _), Command::DeleteElement(other, _)) => one == other,
        (Command::InArpTable(one), Command::InArpTable(other)) => fit_together(one, other),
        _ => false,
    }
}

struct Encoder<'a> {
    table: &'a str,
    /// The family of the next message.
    family: u8,
    batch: Batch,
    subjects: Vec<Range<usize>>,
    /// The number of encoded commands.
    encoded: usize,
    /// The number of the next new set.
    next_id: u32,
}

impl Encoder<'_> {
    fn frame(&mut self, kind: u16, body: impl FnOnce(&mut Writer<'_>)) -> Result<()> {
        self.subjects.push(0..0);
        frame(&mut self.batch, kind, body)
    }

    /// Encodes a message that deletes the tables, or all of their rules.
    fn existing(&mut self, kind: u16, arp: ExistingArp) -> Result<()> {
        let families: &[u8] = match arp {
            ExistingArp::Present => &[NFPROTO_INET, NFPROTO_ARP],
            ExistingArp::Missing => &[NFPROTO_INET],
        };
        for &family in families {
            self.family = family;
            // A deletion in a missing table fails. Adding an existing one does not, so add it first.
            // `NFT_MSG_DESTROYTABLE` needs Linux 6.3.
            self.table(NFT_MSG_NEWTABLE, 0..0)?;
            self.table(kind, 0..0)?;
        }
        self.family = NFPROTO_INET;
        Ok(())
    }

    /// Encodes a message whose only attribute is the table's name; `NFTA_RULE_TABLE` has the same number.
    fn table(&mut self, kind: u16, subject: Range<usize>) -> Result<()> {
        let name = self.table;
        self.message(kind, 0, subject, |writer| {
            writer.string(NFTA_TABLE_NAME, name);
        })
    }

    fn message(
        &mut self,
        kind: u16,
        flags: u16,
        subject: Range<usize>,
        body: impl FnOnce(&mut Writer<'_>),
    ) -> Result<()> {
        self.subjects.push(subject);
        let create = match kind {
            NFT_MSG_NEWTABLE | NFT_MSG_NEWCHAIN | NFT_MSG_NEWRULE | NFT_MSG_NEWSET
            | NFT_MSG_NEWSETELEM => NLM_F_CREATE,
            _ => 0,
        };
        let family = self.family;
        self.batch
            .push(message_type(kind), flags | create, |writer| {
                writer.header(&[family, 0, 0, 0]);
                body(writer);
            })
    }

    /// Encodes commands that [fit together](fit_together).
    fn commands(&mut self, commands: &[impl Borrow<Command>]) -> Result<()> {
        let subject = self.encoded..self.encoded + commands.len();
        self.encoded = subject.end;
        let Some(first) = commands.first().map(Borrow::borrow) else {
            return Ok(());
        };
        self.family = match first {
            Command::AddArpTable | Command::DeleteArpTable | Command::InArpTable(_) => NFPROTO_ARP,
            _ => NFPROTO_INET,
        };
        self.command(first.in_its_table(), commands, subject)
    }

    /// Encodes `first`, the first of `commands`, which fit together.
    fn command(
        &mut self,
        first: &Command,
        commands: &[impl Borrow<Command>],
        subject: Range<usize>,
    ) -> Result<()> {
        let table = self.table;
        match first {
            Command::AddArpTable => self.table(NFT_MSG_NEWTABLE, subject),
            Command::DeleteArpTable => self.table(NFT_MSG_DELTABLE, subject),
            // `in_its_table` removed this variant.
            Command::InArpTable(_) => Ok(()),
            Command::AddSet(set) => {
                let id = self.next_id;
                self.next_id += 1;
                self.message(NFT_MSG_NEWSET, 0, subject, |writer| {
                    write_set(writer, table, set, id);
                })
            }
            Command::DeleteSet(name) => self.message(NFT_MSG_DELSET, 0, subject, |writer| {
                writer.string(NFTA_SET_TABLE, table);
                writer.string(NFTA_SET_NAME, name);
            }),
            Command::AddElement(set, _) | Command::AddTarget(set, ..) => {
                self.message(NFT_MSG_NEWSETELEM, 0, subject, |writer| {
                    write_elements(writer, table, set, commands);
                })
            }
            Command::DeleteElement(set, _) => {
                self.message(NFT_MSG_DELSETELEM, 0, subject, |writer| {
                    write_elements(writer, table, set, commands);
                })
            }
            Command::AddChain(name, hook) => self.message(NFT_MSG_NEWCHAIN, 0, subject, |writer| {
                write_chain(writer, table, name, *hook);
            }),
            Command::DeleteChain(name) => self.message(NFT_MSG_DELCHAIN, 0, subject, |writer| {
                writer.string(NFTA_CHAIN_TABLE, table);
                writer.string(NFTA_CHAIN_NAME, name);
            }),
            Command::AddRule(chain, rule) => self.add_rule(chain, rule, subject),
            Command::FlushChain(chain) => self.message(NFT_MSG_DELRULE, 0, subject, |writer| {
                writer.string(NFTA_RULE_TABLE, table);
                writer.string(NFTA_RULE_CHAIN, chain);
            }),
        }
    }

    fn add_rule(&mut self, chain: &str, rule: &Rule, subject: Range<usize>) -> Result<()> {
        let table = self.table;
        let sets = anonymous_sets(rule, &mut self.next_id);
        for set in &sets {
            self.anonymous_set(set, &subject)?;
        }
        self.message(NFT_MSG_NEWRULE, NLM_F_APPEND, subject, |writer| {
            writer.string(NFTA_RULE_TABLE, table);
            writer.string(NFTA_RULE_CHAIN, chain);
            writer.nested(NFTA_RULE_EXPRESSIONS, |expressions| {
                write_rule(expressions, rule, &sets);
            });
            writer.bytes(NFTA_RULE_USERDATA, &userdata(rule));
        })
    }

    fn anonymous_set(&mut self, set: &AnonymousSet, subject: &Range<usize>) -> Result<()> {
        let table = self.table;
        self.message(NFT_MSG_NEWSET, 0, subject.clone(), |writer| {
            set.write(writer, table);
        })?;
        for elements in set.elements().chunks(ELEMENTS_PER_MESSAGE) {
            self.message(NFT_MSG_NEWSETELEM, 0, subject.clone(), |writer| {
                set.write_elements(writer, table, elements);
            })?;
        }
        Ok(())
    }
}

/// Writes the attributes of a message that adds a set without elements.
pub(crate) fn write_set(writer: &mut Writer<'_>, table: &str, set: &Set, id: u32) {
    writer.string(NFTA_SET_TABLE, table);
    writer.string(NFTA_SET_NAME, &set.name);
    writer.u32_be(NFTA_SET_FLAGS, set.kind.flags());
    write_key_type(writer, set.key_type(), &set.key);
    if let Some((number, length)) = set.kind.data_type() {
        writer.u32_be(NFTA_SET_DATA_TYPE, number);
        if let Some(length) = length {
            writer.u32_be(NFTA_SET_DATA_LEN, length);
        }
    }
    writer.u32_be(NFTA_SET_ID, id);
    if let Some(millis) = set.kind.timeout() {
        writer.bytes(NFTA_SET_TIMEOUT, &millis.to_be_bytes());
    }
    if let Some(size) = set.kind.size() {
        writer.nested(NFTA_SET_DESC, |description| {
            description.u32_be(NFTA_SET_DESC_SIZE, size);
        });
    }
    if set.kind == SetKind::CountingSet {
        // The kernel gives each element a copy of this expression.
        writer.nested(NFTA_SET_EXPR, |counter| {
            counter.string(NFTA_EXPR_NAME, "counter");
        });
    }
    match set.key[..] {
        [KeyType::Mark | KeyType::Interface] => writer.bytes(NFTA_SET_USERDATA, HOST_ORDER),
        [KeyType::ConnectionId] => writer.bytes(NFTA_SET_USERDATA, TYPEOF_CT_ID_META_MARK),
        _ => {}
    }
}

/// Writes the type number and the length of a key.
pub(crate) fn write_key_type(writer: &mut Writer<'_>, number: u32, key: &[KeyType]) {
    writer.u32_be(NFTA_SET_KEY_TYPE, number);
    let length = KeyType::length_of_key(key);
    writer.u32_be(NFTA_SET_KEY_LEN, u32::try_from(length).unwrap_or(u32::MAX));
}

// Userdata of sets, which the kernel stores and does not read. Without it `nft list` prints marks in
// the wrong byte order and cannot print `typeof`. Each item is a kind, a length and that many bytes
// (`NFTNL_UDATA_SET_*` of libnftnl; numbers in the byte order of x86 and ARM).

/// The bytes of a key are in the host's order.
const HOST_ORDER: &[u8] = &[0, 4, 1, 0, 0, 0];

/// `typeof ct id : meta mark`
const TYPEOF_CT_ID_META_MARK: &[u8] = &[
    0, 4, 1, 0, 0, 0, // the byte order of keys: the host's
    1, 4, 1, 0, 0, 0, // the byte order of data: the host's
    3, 20, 0, 4, 12, 0, 0, 0, 1, 12, 0, 4, 23, 0, 0, 0, 1, 4, 255, 255, 255, 255, // ct id
    4, 14, 0, 4, 9, 0, 0, 0, 1, 6, 0, 4, 3, 0, 0, 0, // meta mark
    6, 4, 0, 0, 0, 0, // no intervals
];

fn write_elements(
    writer: &mut Writer<'_>,
    table: &str,
    set: &str,
    commands: &[impl Borrow<Command>],
) {
    writer.string(NFTA_SET_ELEM_LIST_TABLE, table);
    writer.string(NFTA_SET_ELEM_LIST_SET, set);
    writer.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
        for command in commands {
            list.nested(NFTA_LIST_ELEM, |writer| {
                match command.borrow().in_its_table() {
                    Command::AddElement(_, element) => {
                        write_element(writer, &element.key, &element.verdict.clone().into());
                    }
                    Command::AddTarget(_, key, target) => {
                        write_element(writer, key, &Data::Target(*target));
                    }
                    Command::DeleteElement(_, key) => write_element(writer, key, &Data::None),
                    // `fit_together` admits no other command.
                    _ => {}
                }
            });
        }
    });
}

/// Writes the attributes of an element.
pub(crate) fn write_element(writer: &mut Writer<'_>, key: &Key, data: &Data) {
    write_value(writer, NFTA_SET_ELEM_KEY, &key.encode());
    match data {
        Data::None => {}
        Data::Verdict(verdict) => {
            writer.nested(NFTA_SET_ELEM_DATA, |data| write_verdict(data, verdict));
        }
        Data::Target(target) => {
            write_value(writer, NFTA_SET_ELEM_DATA, &encode_target(*target));
        }
    }
}

/// Returns the bytes of a target: those of a key of an address and a port.
fn encode_target(target: SocketAddr) -> KeyBytes {
    Key::new([target.ip().into(), Value::Port(target.port())]).encode()
}

pub(crate) fn write_value(writer: &mut Writer<'_>, kind: u16, value: &[u8]) {
    writer.nested(kind, |data| data.bytes(NFTA_DATA_VALUE, value));
}

/// Writes the attributes of a message that adds a chain without rules.
pub(crate) fn write_chain(writer: &mut Writer<'_>, table: &str, name: &str, hook: Option<Hook>) {
    writer.string(NFTA_CHAIN_TABLE, table);
    writer.string(NFTA_CHAIN_NAME, name);
    let Some(hook) = hook else {
        return;
    };
    writer.string(NFTA_CHAIN_TYPE, hook.kind());
    writer.nested(NFTA_CHAIN_HOOK, |attributes| {
        attributes.u32_be(NFTA_HOOK_HOOKNUM, hook.number());
        attributes.u32_be(NFTA_HOOK_PRIORITY, hook.priority().cast_unsigned());
    });
    writer.u32_be(NFTA_CHAIN_POLICY, NF_ACCEPT.cast_unsigned());
}
