//! Changes as the messages of one transaction.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use ipvs_netlink::Result;
use ipvs_netlink::attr::{Attribute, Writer, attributes};
use ipvs_netlink::batch::Batch;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE};

use super::change::Change;
use super::existing::userdata;
use super::expression::{ANONYMOUS, Anonymous, Content, anonymous_sets, write_rule, write_verdict};
use super::set::{Element, Kind, Set};
use super::sys::*;
use super::table::Hook;
use super::value::Type;
use crate::model::{Family, Networks, Protocol};

/// An attribute holds 65,535 bytes; an element takes less than 400.
const ELEMENTS_PER_MESSAGE: usize = 128;

/// What a transaction starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The table as it is; it has to exist.
    Existing,
    /// An empty table, in the place of one of that name, if there is one.
    Anew,
    /// No table at all is left.
    Nothing,
}

/// How many changes one message may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// Many elements of a set.
    Together,
    /// One, so that a refusal tells which one it is about.
    Singly,
}

/// An encoded transaction.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) batch: Batch,
    /// Which changes each message is about; none for those that frame the transaction.
    pub(super) subjects: Vec<Range<usize>>,
}

/// Encodes a transaction, which the kernel carries out only while its rules are those of
/// `generation`.
pub(super) fn transaction(
    table: &str,
    base: Base,
    changes: impl IntoIterator<Item = Change>,
    generation: u32,
    grouping: Grouping,
) -> Result<Transaction> {
    let mut encoder = Encoder {
        table,
        batch: Batch::new(),
        subjects: Vec::new(),
        encoded: 0,
        next_id: 1,
    };
    encoder.frame(NFNL_MSG_BATCH_BEGIN, |writer| {
        writer.u32_be(NFNL_BATCH_GENID, generation);
    })?;
    if base != Base::Existing {
        // To delete what may not be there, it is made first.
        encoder.table(NFT_MSG_NEWTABLE)?;
        encoder.table(NFT_MSG_DELTABLE)?;
    }
    if base == Base::Anew {
        encoder.table(NFT_MSG_NEWTABLE)?;
    }
    let mut group = Vec::new();
    for change in changes {
        let is_full = match grouping {
            Grouping::Together => {
                group.len() == ELEMENTS_PER_MESSAGE
                    || group
                        .first()
                        .is_some_and(|first| !are_alike(first, &change))
            }
            Grouping::Singly => !group.is_empty(),
        };
        if is_full {
            encoder.changes(&group)?;
            group.clear();
        }
        group.push(change);
    }
    encoder.changes(&group)?;
    encoder.frame(NFNL_MSG_BATCH_END, |_| {})?;
    Ok(Transaction {
        batch: encoder.batch,
        subjects: encoder.subjects,
    })
}

/// How many bytes the transaction of these changes has.
///
/// # Errors
/// [`ipvs_netlink::Error::TooLong`] when a name is too long for netlink.
pub fn transaction_length(table: &str, changes: impl IntoIterator<Item = Change>) -> Result<usize> {
    let encoded = transaction(table, Base::Existing, changes, 0, Grouping::Together)?;
    Ok(encoded.batch.as_bytes().len())
}

/// The type of a message of nf_tables of this kind, such as [`NFT_MSG_NEWRULE`].
pub(super) fn message_type(kind: u16) -> u16 {
    (NFNL_SUBSYS_NFTABLES << 8) | kind
}

/// Appends the begin or the end of a transaction.
pub(super) fn frame(
    batch: &mut Batch,
    kind: u16,
    body: impl FnOnce(&mut Writer<'_>),
) -> Result<()> {
    batch.push(kind, 0, |writer| {
        // `res_id` says whose transaction it is.
        let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
        writer.header(&[NFPROTO_UNSPEC, 0, high, low]);
        body(writer);
    })
}

/// The attributes of a message of nf_tables, which follow family, version and resource
/// (`struct nfgenmsg`).
pub(super) fn contents(payload: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>>> {
    attributes(payload.get(4..).unwrap_or_default())
}

/// Whether one message can carry both: elements of one set that come, or that go.
fn are_alike(one: &Change, other: &Change) -> bool {
    match (one, other) {
        (Change::AddElement(one, _), Change::AddElement(other, _))
        | (Change::DeleteElement(one, _), Change::DeleteElement(other, _)) => one == other,
        _ => false,
    }
}

struct Encoder<'a> {
    table: &'a str,
    batch: Batch,
    subjects: Vec<Range<usize>>,
    /// How many changes were encoded.
    encoded: usize,
    /// The number of the next set without a name.
    next_id: u32,
}

impl Encoder<'_> {
    fn frame(&mut self, kind: u16, body: impl FnOnce(&mut Writer<'_>)) -> Result<()> {
        self.subjects.push(0..0);
        frame(&mut self.batch, kind, body)
    }

    fn table(&mut self, kind: u16) -> Result<()> {
        let name = self.table;
        self.message(kind, 0, 0..0, |writer| writer.string(NFTA_TABLE_NAME, name))
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
        self.batch
            .push(message_type(kind), flags | create, |writer| {
                writer.header(&[NFPROTO_INET, 0, 0, 0]);
                body(writer);
            })
    }

    /// Encodes changes that are alike.
    fn changes(&mut self, changes: &[Change]) -> Result<()> {
        let table = self.table;
        let subject = self.encoded..self.encoded + changes.len();
        self.encoded = subject.end;
        let Some(first) = changes.first() else {
            return Ok(());
        };
        match first {
            Change::AddSet(set) => {
                let id = self.next_id();
                self.message(NFT_MSG_NEWSET, 0, subject, |writer| {
                    write_set(writer, table, set, id);
                })
            }
            Change::DeleteSet(name) => self.message(NFT_MSG_DELSET, 0, subject, |writer| {
                writer.string(NFTA_SET_TABLE, table);
                writer.string(NFTA_SET_NAME, name);
            }),
            Change::AddElement(set, _) => self.message(NFT_MSG_NEWSETELEM, 0, subject, |writer| {
                write_elements(writer, table, set, changes);
            }),
            Change::DeleteElement(set, _) => {
                self.message(NFT_MSG_DELSETELEM, 0, subject, |writer| {
                    write_elements(writer, table, set, changes);
                })
            }
            Change::AddChain(name, hook) => self.message(NFT_MSG_NEWCHAIN, 0, subject, |writer| {
                write_chain(writer, table, name, *hook);
            }),
            Change::DeleteChain(name) => self.message(NFT_MSG_DELCHAIN, 0, subject, |writer| {
                writer.string(NFTA_CHAIN_TABLE, table);
                writer.string(NFTA_CHAIN_NAME, name);
            }),
            Change::AddRule(chain, rule) => {
                let sets = anonymous_sets(rule, &mut self.next_id);
                for set in &sets {
                    self.anonymous(set, &subject)?;
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
            Change::FlushChain(chain) => self.message(NFT_MSG_DELRULE, 0, subject, |writer| {
                writer.string(NFTA_RULE_TABLE, table);
                writer.string(NFTA_RULE_CHAIN, chain);
            }),
        }
    }

    fn next_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// A set without a name, and its elements.
    fn anonymous(&mut self, set: &Anonymous, subject: &Range<usize>) -> Result<()> {
        let table = self.table;
        let elements: Vec<Bare> = match &set.content {
            Content::Networks(networks) => interval_elements(networks),
            Content::Protocols(protocols) => {
                let element = |protocol: &Protocol| Bare {
                    key: vec![protocol.number()],
                    flags: 0,
                };
                protocols.iter().map(element).collect()
            }
        };
        let interval = match set.content {
            Content::Networks(_) => NFT_SET_INTERVAL,
            Content::Protocols(_) => 0,
        };
        let size = u32::try_from(elements.len()).unwrap_or(u32::MAX);
        self.message(NFT_MSG_NEWSET, 0, subject.clone(), |writer| {
            writer.string(NFTA_SET_TABLE, table);
            writer.string(NFTA_SET_NAME, ANONYMOUS);
            let flags = NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | interval;
            writer.u32_be(NFTA_SET_FLAGS, flags);
            write_key_type(writer, set.key.number(), &[set.key]);
            writer.u32_be(NFTA_SET_ID, set.id);
            writer.nested(NFTA_SET_DESC, |description| {
                description.u32_be(NFTA_SET_DESC_SIZE, size);
            });
        })?;
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            self.message(NFT_MSG_NEWSETELEM, 0, subject.clone(), |writer| {
                writer.string(NFTA_SET_ELEM_LIST_TABLE, table);
                writer.string(NFTA_SET_ELEM_LIST_SET, ANONYMOUS);
                writer.u32_be(NFTA_SET_ELEM_LIST_SET_ID, set.id);
                writer.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
                    for element in chunk {
                        list.nested(NFTA_LIST_ELEM, |writer| {
                            if element.flags != 0 {
                                writer.u32_be(NFTA_SET_ELEM_FLAGS, element.flags);
                            }
                            write_value(writer, NFTA_SET_ELEM_KEY, &element.key);
                        });
                    }
                });
            })?;
        }
        Ok(())
    }
}

/// An element of a set without a name.
struct Bare {
    key: Vec<u8>,
    flags: u32,
}

/// Ranges as the kernel keeps them: an element where each begins, and one marked as the end where
/// it is over. nft also marks the first address as an end if no range begins there.
fn interval_elements(networks: &Networks) -> Vec<Bare> {
    let key = |number: u128| match networks.family() {
        Family::V4 => {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            Ipv4Addr::from(number).octets().to_vec()
        }
        Family::V6 => Ipv6Addr::from(number).octets().to_vec(),
    };
    let last = match networks.family() {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    };
    let begin = |number| Bare {
        key: key(number),
        flags: 0,
    };
    let end = |number| Bare {
        key: key(number),
        flags: NFT_SET_ELEM_INTERVAL_END,
    };
    let ranges = networks.ranges();
    let mut elements = Vec::with_capacity(2 * ranges.len() + 1);
    if ranges.first().is_some_and(|&(first, _)| first > 0) {
        elements.push(end(0));
    }
    for (from, to) in ranges {
        elements.push(begin(from));
        if to < last {
            elements.push(end(to + 1));
        }
    }
    elements
}

fn write_set(writer: &mut Writer<'_>, table: &str, set: &Set, id: u32) {
    writer.string(NFTA_SET_TABLE, table);
    writer.string(NFTA_SET_NAME, &set.name);
    writer.u32_be(NFTA_SET_FLAGS, set.kind.flags());
    write_key_type(writer, set.key_type(), &set.key);
    match set.kind {
        Kind::Set => {}
        Kind::Verdicts => writer.u32_be(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT),
        Kind::Learned { .. } => {
            writer.u32_be(NFTA_SET_DATA_TYPE, Type::Mark.number());
            writer.u32_be(NFTA_SET_DATA_LEN, 4);
        }
    }
    writer.u32_be(NFTA_SET_ID, id);
    if let Some((millis, size)) = set.kind.limits() {
        writer.bytes(NFTA_SET_TIMEOUT, &millis.to_be_bytes());
        writer.nested(NFTA_SET_DESC, |description| {
            description.u32_be(NFTA_SET_DESC_SIZE, size);
        });
    }
    match set.key[..] {
        [Type::Mark] => writer.bytes(NFTA_SET_USERDATA, HOST_ORDER),
        [Type::ConnectionId] => writer.bytes(NFTA_SET_USERDATA, TYPEOF_CT_ID_META_MARK),
        _ => {}
    }
}

/// The number of a key's types, and its length.
fn write_key_type(writer: &mut Writer<'_>, number: u32, key: &[Type]) {
    writer.u32_be(NFTA_SET_KEY_TYPE, number);
    let length = |part: &Type| match key.len() {
        1 => part.length(),
        _ => part.length().next_multiple_of(4),
    };
    let length: usize = key.iter().map(length).sum();
    writer.u32_be(NFTA_SET_KEY_LEN, u32::try_from(length).unwrap_or(u32::MAX));
}

// What nft leaves with a set for itself to read, and needs to print it: items of a kind, a length
// and that many bytes (`NFTNL_UDATA_SET_*` of libnftnl; numbers in the order of x86 and ARM). To the
// kernel it means nothing.

/// The bytes of a key are in the host's order.
const HOST_ORDER: &[u8] = &[0, 4, 1, 0, 0, 0];

/// `typeof ct id : meta mark`
const TYPEOF_CT_ID_META_MARK: &[u8] = &[
    0, 4, 1, 0, 0, 0, // the order of keys: the host's
    1, 4, 1, 0, 0, 0, // the order of data
    3, 20, 0, 4, 12, 0, 0, 0, 1, 12, 0, 4, 23, 0, 0, 0, 1, 4, 255, 255, 255, 255, // ct id
    4, 14, 0, 4, 9, 0, 0, 0, 1, 6, 0, 4, 3, 0, 0, 0, // meta mark
    6, 4, 0, 0, 0, 0, // no intervals
];

fn write_elements(writer: &mut Writer<'_>, table: &str, set: &str, changes: &[Change]) {
    writer.string(NFTA_SET_ELEM_LIST_TABLE, table);
    writer.string(NFTA_SET_ELEM_LIST_SET, set);
    writer.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
        for change in changes {
            list.nested(NFTA_LIST_ELEM, |writer| match change {
                Change::AddElement(_, element) => write_element(writer, element),
                Change::DeleteElement(_, key) => {
                    write_value(writer, NFTA_SET_ELEM_KEY, &key.encode());
                }
                // The others are not encoded here.
                _ => {}
            });
        }
    });
}

fn write_element(writer: &mut Writer<'_>, element: &Element) {
    write_value(writer, NFTA_SET_ELEM_KEY, &element.key.encode());
    if let Some(verdict) = &element.verdict {
        writer.nested(NFTA_SET_ELEM_DATA, |data| write_verdict(data, verdict));
    }
}

fn write_value(writer: &mut Writer<'_>, kind: u16, value: &[u8]) {
    writer.nested(kind, |data| data.bytes(NFTA_DATA_VALUE, value));
}

fn write_chain(writer: &mut Writer<'_>, table: &str, name: &str, hook: Option<Hook>) {
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
