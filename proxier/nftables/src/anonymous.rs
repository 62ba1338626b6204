//! Anonymous sets, which belong to one rule: `{ tcp, udp }`.
//!
//! The kernel needs such a set before the rule, in the same transaction. It deletes the set together
//! with the rule.

use std::net::{Ipv4Addr, Ipv6Addr};

use netlink::attr::Writer;

use crate::message::{write_key_type, write_value};
use crate::rule::{Match, Rule, Statement};
use crate::sys::*;
use crate::value::KeyType;
use net::{Family, Networks};

/// The name with which the kernel chooses one itself (`nf_tables_set_alloc_name`).
pub(crate) const ANONYMOUS: &str = "__set%d";

#[derive(Debug)]
pub(crate) struct AnonymousSet {
    /// The number by which the rule refers to the set; unique in a transaction.
    pub(crate) id: u32,
    key: KeyType,
    flags: u32,
    elements: Vec<AnonymousElement>,
}

#[derive(Debug)]
pub(crate) struct AnonymousElement {
    key: Vec<u8>,
    flags: u32,
}

/// Returns the anonymous sets of `rule`, with numbers from `next_id` on.
pub(crate) fn anonymous_sets(rule: &Rule, next_id: &mut u32) -> Vec<AnonymousSet> {
    let contents = rule.statements().iter().filter_map(content);
    contents
        .map(|(key, flags, elements)| {
            let id = *next_id;
            *next_id += 1;
            AnonymousSet {
                id,
                key,
                flags,
                elements,
            }
        })
        .collect()
}

fn content(statement: &Statement) -> Option<(KeyType, u32, Vec<AnonymousElement>)> {
    match statement {
        Statement::Match(
            Match::Source(_, networks)
            | Match::Destination(networks)
            | Match::OriginalDestination(networks),
        ) if networks.single().is_none() => {
            let key = KeyType::Address(networks.family());
            Some((key, NFT_SET_INTERVAL, interval_elements(networks)))
        }
        Statement::Match(Match::Protocol(protocols)) if protocols.len() != 1 => {
            let elements = protocols.iter().map(|protocol| AnonymousElement {
                key: vec![protocol.number()],
                flags: 0,
            });
            Some((KeyType::Protocol, 0, elements.collect()))
        }
        _ => None,
    }
}

impl AnonymousSet {
    pub(crate) fn elements(&self) -> &[AnonymousElement] {
        &self.elements
    }

    /// Writes the attributes of a message that adds the set.
    pub(crate) fn write(&self, writer: &mut Writer<'_>, table: &str) {
        writer.string(NFTA_SET_TABLE, table);
        writer.string(NFTA_SET_NAME, ANONYMOUS);
        let flags = NFT_SET_ANONYMOUS | NFT_SET_CONSTANT | self.flags;
        writer.u32_be(NFTA_SET_FLAGS, flags);
        write_key_type(writer, self.key.number(), &[self.key]);
        writer.u32_be(NFTA_SET_ID, self.id);
        let size = u32::try_from(self.elements.len()).unwrap_or(u32::MAX);
        writer.nested(NFTA_SET_DESC, |description| {
            description.u32_be(NFTA_SET_DESC_SIZE, size);
        });
    }

    /// Writes the attributes of a message that adds `elements`, some or all of the set's.
    pub(crate) fn write_elements(
        &self,
        writer: &mut Writer<'_>,
        table: &str,
        elements: &[AnonymousElement],
    ) {
        writer.string(NFTA_SET_ELEM_LIST_TABLE, table);
        writer.string(NFTA_SET_ELEM_LIST_SET, ANONYMOUS);
        writer.u32_be(NFTA_SET_ELEM_LIST_SET_ID, self.id);
        writer.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |list| {
            for element in elements {
                list.nested(NFTA_LIST_ELEM, |writer| {
                    if element.flags != 0 {
                        writer.u32_be(NFTA_SET_ELEM_FLAGS, element.flags);
                    }
                    write_value(writer, NFTA_SET_ELEM_KEY, &element.key);
                });
            }
        });
    }
}

/// Returns the elements that the kernel has for ranges: one at the first address of each range, and
/// one with a flag at the first address after it.
///
/// Like nft, marks address 0 as an end if no range begins there.
fn interval_elements(networks: &Networks) -> Vec<AnonymousElement> {
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
    let begin = |number| AnonymousElement {
        key: key(number),
        flags: 0,
    };
    let end = |number| AnonymousElement {
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
        // A range without an end reaches to the last address.
        if to < last {
            elements.push(end(to + 1));
        }
    }
    elements
}
