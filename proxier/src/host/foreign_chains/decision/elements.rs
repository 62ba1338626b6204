//! The elements of sets that foreign rules look up.

use std::collections::BTreeMap;

use netlink::Error;
use netlink::attr::find;
use netlink::transport::Transport;

use crate::host::listing::{self, ChainName};
use nftables::Verdict;
use nftables::raw::{contents, message_type, read_verdict};
use nftables::sys::*;

/// The end of an interval of a concatenated key. Such sets are not evaluated.
const NFTA_SET_ELEM_KEY_END: u16 = 10;

/// The most elements of a set that are read.
const MOST_ELEMENTS: usize = 100_000;

/// The sets of one table, each read when a rule needs it.
pub(super) struct Elements<'a> {
    transport: &'a mut Transport,
    table: &'a ChainName,
    known: BTreeMap<String, Option<SetContent>>,
}

/// A set: by the first key of each interval, the verdict, and whether the interval has any element. A set without
/// intervals has each key as one.
#[derive(Clone, Debug, Default)]
struct SetContent {
    has_intervals: bool,
    elements: BTreeMap<Vec<u8>, (bool, Option<Verdict>)>,
    is_known: bool,
}

/// The result of a lookup.
pub(super) enum Found {
    /// No element has the key.
    No,
    /// An element has it, with this verdict in a verdict map.
    Yes(Option<Verdict>),
    /// The set cannot be evaluated.
    Unknown,
}

impl<'a> Elements<'a> {
    pub(super) fn new(transport: &'a mut Transport, table: &'a ChainName) -> Self {
        Self {
            transport,
            table,
            known: BTreeMap::new(),
        }
    }

    /// Looks up the key that begins `register`.
    pub(super) fn find(&mut self, set: &str, register: &[u8]) -> Result<Found, Error> {
        if !self.known.contains_key(set) {
            let content = self.read(set)?;
            self.known.insert(set.to_owned(), content);
        }
        let Some(Some(content)) = self.known.get(set) else {
            return Ok(Found::Unknown);
        };
        let Some(length) = content.elements.keys().map(Vec::len).max() else {
            return Ok(Found::No);
        };
        let Some(key) = register.get(..length) else {
            return Ok(Found::Unknown);
        };
        let found = match content.has_intervals {
            true => content
                .elements
                .range(..=key.to_vec())
                .next_back()
                .map(|(_, it)| it),
            false => content.elements.get(key),
        };
        Ok(match found {
            Some((true, verdict)) => Found::Yes(verdict.clone()),
            _ => Found::No,
        })
    }

    /// Reads a set; `None` if it cannot be evaluated.
    fn read(&mut self, set: &str) -> Result<Option<SetContent>, Error> {
        let mut content = SetContent {
            is_known: true,
            ..SetContent::default()
        };
        let table = self.table;
        self.transport.dump(
            message_type(NFT_MSG_GETSETELEM),
            "reading a set of a foreign table",
            |writer| {
                listing::header(writer, table.family);
                writer.string(NFTA_SET_ELEM_LIST_TABLE, &table.table);
                writer.string(NFTA_SET_ELEM_LIST_SET, set);
            },
            |content| {
                *content = SetContent {
                    is_known: true,
                    ..SetContent::default()
                };
            },
            &mut content,
            |content, message| {
                let list = find(contents(message.payload), NFTA_SET_ELEM_LIST_ELEMENTS)?;
                for element in list.iter().flat_map(|list| list.nested()) {
                    let element = element?;
                    let of = |kind| find(element.nested(), kind);
                    let key = of(NFTA_SET_ELEM_KEY)?;
                    let key = key.map(|key| find(key.nested(), NFTA_DATA_VALUE));
                    let Some(key) = key.transpose()?.flatten() else {
                        content.is_known = false;
                        continue;
                    };
                    let flags = of(NFTA_SET_ELEM_FLAGS)?.map(|it| it.u32_be()).transpose()?;
                    let is_end = flags.unwrap_or_default() & NFT_SET_ELEM_INTERVAL_END != 0;
                    let data = of(NFTA_SET_ELEM_DATA)?;
                    let verdict = data.map(|data| read_verdict(&data)).transpose()?.flatten();
                    content.has_intervals |= is_end;
                    content.is_known &= of(NFTA_SET_ELEM_KEY_END)?.is_none();
                    content.is_known &= content.elements.len() < MOST_ELEMENTS;
                    if content.is_known {
                        content
                            .elements
                            .insert(key.value.to_vec(), (!is_end, verdict));
                    }
                }
                Ok(())
            },
        )?;
        Ok(Some(content).filter(|content| content.is_known))
    }
}
