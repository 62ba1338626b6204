//! The names of all chains, of every program.

use std::fmt;

use netlink::Error;
use netlink::transport::{Transport, protocols};

use super::removal::TableName;
use nftables::raw::{contents, message_type};
use nftables::sys::*;

/// The name of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChainName {
    /// The family of its table, as nft spells it.
    pub(crate) family: &'static str,
    /// Its table.
    pub(crate) table: String,
    /// Its own name.
    pub(crate) name: String,
}

/// Lists the chains of all tables in the network namespace of this thread.
///
/// A kernel without nf_tables has none.
///
/// # Errors
/// Those of the socket and of the kernel.
pub(crate) fn list_chains() -> Result<Vec<ChainName>, Error> {
    let mut transport = Transport::open(protocols::NETLINK_NETFILTER)?;
    dump_chains(&mut transport, |payload| Ok(Some(chain_name(payload)?)))
}

/// Dumps the chains of all tables, and returns those for which `read` returns something.
///
/// A kernel without nf_tables has no chains (`nfnetlink_rcv_msg`). The transaction of our own table reports
/// that it is missing.
pub(super) fn dump_chains<T>(
    transport: &mut Transport,
    read: impl Fn(&[u8]) -> Result<Option<T>, Error>,
) -> Result<Vec<T>, Error> {
    let listed = transport.list(
        message_type(NFT_MSG_GETCHAIN),
        "reading the packet filter's chains",
        |writer| writer.header(&[NFPROTO_UNSPEC, 0, 0, 0]),
        read,
    );
    match listed {
        Err(error) if error.is_invalid() => Ok(Vec::new()),
        other => other,
    }
}

/// Reads the name of a chain.
pub(super) fn chain_name(payload: &[u8]) -> Result<ChainName, Error> {
    let (mut table, mut name) = (String::new(), String::new());
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => table = text(attribute.value),
            NFTA_CHAIN_NAME => name = text(attribute.value),
            _ => {}
        }
    }
    let family = payload.first().copied().unwrap_or_default();
    Ok(ChainName {
        family: family_name(family),
        table,
        name,
    })
}

/// The protocol families, each with nft's name.
const FAMILIES: [(u8, &str); 6] = [
    (NFPROTO_IPV4, "ip"),
    (NFPROTO_IPV6, "ip6"),
    (NFPROTO_INET, "inet"),
    (NFPROTO_ARP, "arp"),
    (NFPROTO_BRIDGE, "bridge"),
    (NFPROTO_NETDEV, "netdev"),
];

/// Returns nft's name of a protocol family (`NFPROTO_*`).
pub(super) fn family_name(family: u8) -> &'static str {
    let found = FAMILIES.iter().find(|(number, _)| *number == family);
    found.map_or("unknown", |(_, name)| name)
}

/// Returns the number of a protocol family by nft's name.
pub(super) fn family_number(name: &str) -> u8 {
    let found = FAMILIES.iter().find(|(_, family)| *family == name);
    found.map_or(NFPROTO_UNSPEC, |(number, _)| *number)
}

/// Returns a name as text. The kernel accepts names of any bytes.
///
/// If a name is not UTF-8, requests with the text fail with `ENOENT`.
pub(super) fn text(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.trim_end_matches('\0').to_owned()
}

impl ChainName {
    /// Returns the name of the chain's table.
    pub(crate) fn table(&self) -> TableName {
        TableName {
            family: self.family,
            name: self.table.clone(),
        }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "chain {} of table {} {}",
            self.name, self.family, self.table
        )
    }
}
