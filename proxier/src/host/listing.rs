//! The chains of every program: their names, and messages about them and their rules.

use std::fmt;

use netlink::attr::{Writer, find};
use netlink::batch::Batch;
use netlink::transport::{Transport, protocols};
use netlink::{Error, Refusal};
use rustix::io::Errno;

use super::removal::TableName;
use nftables::raw::{commit, contents, message_type};
use nftables::sys::*;

/// The name of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    /// The family of its table, as nft spells it.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its own name.
    pub name: String,
}

/// Returns whether the kernel has netlink for its packet filter; without it, it has no rules of ours.
///
/// # Errors
/// Those of the socket.
pub(crate) fn has_nfnetlink() -> Result<bool, Error> {
    match Transport::open(protocols::NETLINK_NETFILTER) {
        Ok(_) => Ok(true),
        // `netlink_create`, after it tried to load the module.
        Err(error) if error.errno() == Some(Errno::PROTONOSUPPORT) => Ok(false),
        Err(error) => Err(error),
    }
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
    named_by(payload, NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME)
}

/// Reads the name of the chain of a rule.
pub(super) fn rule_chain(payload: &[u8]) -> Result<ChainName, Error> {
    named_by(payload, NFTA_RULE_TABLE, NFTA_RULE_CHAIN)
}

fn named_by(payload: &[u8], of_table: u16, of_chain: u16) -> Result<ChainName, Error> {
    let (mut table, mut name) = (String::new(), String::new());
    for attribute in contents(payload) {
        let attribute = attribute?;
        if attribute.kind == of_table {
            table = text(attribute.value);
        } else if attribute.kind == of_chain {
            name = text(attribute.value);
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

/// Writes the header of a message about a family, by nft's name.
pub(super) fn header(writer: &mut Writer<'_>, family: &str) {
    let found = FAMILIES.iter().find(|(_, name)| *name == family);
    let number = found.map_or(NFPROTO_UNSPEC, |(number, _)| *number);
    writer.header(&[number, 0, 0, 0]);
}

/// Reads the handle of a rule.
pub(super) fn handle(payload: &[u8]) -> Result<Option<u64>, Error> {
    let handle = find(contents(payload), NFTA_RULE_HANDLE)?;
    let handle = handle.map(|handle| handle.array().map(u64::from_be_bytes));
    handle.transpose()
}

/// Sends the messages that `fill` adds as one transaction.
///
/// # Errors
/// Those of the socket, of `fill`, and the kernel's refusal.
pub(super) fn commit_all(
    transport: &mut Transport,
    doing: &str,
    fill: impl FnOnce(&mut Batch) -> Result<(), Error>,
) -> Result<(), Error> {
    match commit(transport, fill)? {
        None => Ok(()),
        Some(refusal) => Err(refused(doing, refusal)),
    }
}

/// Returns a refusal as an error.
pub(super) fn refused(doing: &str, refusal: Refusal) -> Error {
    Error::Refused {
        doing: doing.into(),
        refusal,
    }
}

/// Returns a name as text. The kernel accepts names of any bytes.
///
/// If a name is not UTF-8, requests with the text fail with `ENOENT`.
pub(super) fn text(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.trim_end_matches('\0').to_owned()
}

impl ChainName {
    /// Writes the begin of a message about the chain: header, table and name.
    pub(super) fn write_itself(&self, writer: &mut Writer<'_>) {
        header(writer, self.family);
        writer.string(NFTA_CHAIN_TABLE, &self.table);
        writer.string(NFTA_CHAIN_NAME, &self.name);
    }

    /// Writes the begin of a message about the chain's rules: header, table and chain.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        header(writer, self.family);
        writer.string(NFTA_RULE_TABLE, &self.table);
        writer.string(NFTA_RULE_CHAIN, &self.name);
    }

    /// Adds a message that deletes the rule with this handle; without one, all rules of the chain.
    pub(super) fn delete_rule(&self, batch: &mut Batch, handle: Option<u64>) -> Result<(), Error> {
        batch.push(message_type(NFT_MSG_DELRULE), 0, |writer| {
            self.write(writer);
            if let Some(handle) = handle {
                writer.bytes(NFTA_RULE_HANDLE, &handle.to_be_bytes());
            }
        })
    }

    /// Adds a message that deletes the chain.
    pub(super) fn delete(&self, batch: &mut Batch) -> Result<(), Error> {
        batch.push(message_type(NFT_MSG_DELCHAIN), 0, |writer| {
            self.write_itself(writer)
        })
    }

    /// Returns the words of the command `nft list` that lists it.
    pub(crate) fn listed(&self) -> String {
        let Self {
            family,
            table,
            name,
        } = self;
        format!("chain {family} {table} {name}")
    }

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
