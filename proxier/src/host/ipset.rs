//! The kernel's ipsets: lists their headers and destroys them.
//!
//! This program needs no ipset of its own. It removes those of kube-proxy (`predecessor`). In the
//! kernel, see `net/netfilter/ipset/ip_set_core.c` and `include/uapi/linux/netfilter/ipset/ip_set.h`.

use std::fmt;

use netlink::attr::{Writer, attributes, find};
use netlink::batch::Batch;
use netlink::transport::{Transport, protocols};
use netlink::{Errno, Result};

const NFNL_SUBSYS_IPSET: u16 = 6;
const IPSET_CMD_DESTROY: u16 = 3;
const IPSET_CMD_LIST: u16 = 7;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_FLAGS: u16 = 6;
const IPSET_ATTR_DATA: u16 = 7;
/// In `IPSET_ATTR_DATA`.
const IPSET_ATTR_REFERENCES: u16 = 25;
/// A list without the members of the sets.
const IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;
/// The oldest protocol that kernels since 2.6.39 accept for lists and destruction.
const PROTOCOL: u8 = 6;
/// `struct nfgenmsg`, which precedes the attributes.
const HEADER: [u8; 4] = [0; 4];

/// An ipset without its members.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IpSet {
    pub(crate) name: String,
    /// The number of rules that match against the set. The kernel destroys no set that has any.
    pub(crate) references: u32,
}

/// A client of the ipsets of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct IpSetClient {
    transport: Transport,
}

impl IpSetClient {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`netlink::Error::Socket`].
    pub(crate) fn open() -> Result<Self> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
        })
    }

    /// Lists the sets whose name `selects` accepts. A kernel without ipset has none.
    ///
    /// # Errors
    /// Those of the socket and of the kernel.
    pub(crate) fn list(&mut self, selects: impl Fn(&str) -> bool) -> Result<Vec<IpSet>> {
        let listed = self.transport.list(
            message_type(IPSET_CMD_LIST),
            "listing the ipsets",
            |writer| {
                write_protocol(writer);
                writer.u32_be(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER);
            },
            |payload| Ok(read(payload)?.filter(|set| selects(&set.name))),
        );
        let mut sets = match listed {
            // `nfnetlink_rcv_msg` (Linux 6.1) without the module.
            Err(error) if error.is_invalid() => Vec::new(),
            other => other?,
        };
        // A set with many members may take several messages.
        sets.sort();
        sets.dedup_by(|one, other| one.name == other.name);
        Ok(sets)
    }

    /// Destroys the `sets`. Returns those that the kernel refused to destroy, because rules use them.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) fn destroy<'a>(&mut self, sets: &'a [IpSet]) -> Result<Vec<&'a IpSet>> {
        let mut batch = Batch::new();
        for set in sets {
            batch.push(message_type(IPSET_CMD_DESTROY), 0, |writer| {
                write_protocol(writer);
                writer.string(IPSET_ATTR_SETNAME, &set.name);
            })?;
        }
        let answers = self.transport.run(&mut batch)?;
        let refused = sets.iter().zip(answers).filter_map(|(set, answer)| {
            let error = answer.err()?.doing("destroying an ipset");
            // Another program may have destroyed it before.
            (error.errno() != Some(Errno::NOENT)).then_some(set)
        });
        Ok(refused.collect())
    }
}

fn message_type(kind: u16) -> u16 {
    (NFNL_SUBSYS_IPSET << 8) | kind
}

fn write_protocol(writer: &mut Writer<'_>) {
    writer.header(&HEADER);
    writer.u8(IPSET_ATTR_PROTOCOL, PROTOCOL);
}

fn read(payload: &[u8]) -> Result<Option<IpSet>> {
    let contents = || attributes(payload.get(HEADER.len()..).unwrap_or_default());
    let Some(name) = find(contents(), IPSET_ATTR_SETNAME)? else {
        return Ok(None);
    };
    let references = match find(contents(), IPSET_ATTR_DATA)? {
        Some(data) => find(data.nested(), IPSET_ATTR_REFERENCES)?,
        None => None,
    };
    Ok(Some(IpSet {
        name: name.string()?.to_owned(),
        references: references.map_or(Ok(0), |count| count.u32_be())?,
    }))
}

impl fmt::Display for IpSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ipset {}", self.name)
    }
}
