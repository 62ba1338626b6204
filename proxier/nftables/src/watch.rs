//! Notifications about changes by other programs.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use netlink::Error;
use netlink::attr::find;
use netlink::listener::{Listener, Notice};
use netlink::transport::protocols;

use crate::message::contents;
use crate::sys::*;

/// A listener for changes by other programs to one table, and to objects of others that its opener selects.
///
/// Its file descriptor becomes readable when any program changes the packet filter. [`RulesWatch::read`]
/// returns only changes of our table and the selected ones.
#[derive(Debug)]
pub struct RulesWatch {
    listener: Listener,
    table: Box<str>,
    /// The port of our own socket, whose changes are ignored.
    own_port: u32,
    relevance: Relevance,
    transaction: SeenTransaction,
}

/// Whether a change of another table matters: the kind of its message, and its payload.
type IsRelevant = dyn Fn(u16, &[u8]) -> bool + Send;

struct Relevance(Box<IsRelevant>);

impl fmt::Debug for Relevance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relevance").finish_non_exhaustive()
    }
}

/// The relevant changes of a transaction whose end has not been read yet.
#[derive(Debug, Default)]
struct SeenTransaction {
    /// The first change of our table, or its deletion.
    in_table: Option<&'static str>,
    /// Whether a selected change is among them.
    in_foreign: bool,
}

/// A change by another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// A transaction changed our table.
    Changed {
        /// The first change, or the deletion of the table.
        what: &'static str,
        /// The process, with the kernel's name for it: `nft (4711)`.
        by: Option<String>,
    },
    /// A transaction made a change that the opener selects.
    Foreign,
    /// The socket's buffer overflowed, and notifications were lost. Anything may have changed.
    Unknown,
}

impl Tampering {
    /// Returns whether our table may have changed.
    pub fn concerns_our_table(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Unknown)
    }

    /// Returns whether a change that the opener selects may have happened.
    pub fn concerns_foreign(&self) -> bool {
        matches!(self, Self::Foreign | Self::Unknown)
    }
}

impl fmt::Display for Tampering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { what, by: None } => f.write_str(what),
            Self::Changed { what, by: Some(by) } => write!(f, "{what} by {by}"),
            Self::Foreign => f.write_str("a foreign chain changed"),
            Self::Unknown => f.write_str("notifications were lost"),
        }
    }
}

impl RulesWatch {
    /// Listens for changes of the table `name` that do not come from the socket `own_port`
    /// ([`super::RulesClient::port`]), and for those for which `is_relevant` returns `true`: it gets the kind
    /// of each notification (`NFT_MSG_*`) and its payload.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(
        name: &str,
        own_port: u32,
        is_relevant: impl Fn(u16, &[u8]) -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        Ok(Self {
            listener: Listener::open(protocols::NETLINK_NETFILTER, &[NFNLGRP_NFTABLES])?,
            table: name.into(),
            own_port,
            relevance: Relevance(Box::new(is_relevant)),
            transaction: SeenTransaction::default(),
        })
    }

    /// Reads the waiting notifications, without blocking.
    ///
    /// # Errors
    /// Those of the socket. Lost notifications are [`Tampering::Unknown`] instead.
    pub fn read(&mut self) -> Result<Vec<Tampering>, Error> {
        let mut changes = Vec::new();
        loop {
            let Self {
                listener,
                table,
                own_port,
                relevance,
                transaction,
            } = self;
            let has_more = listener.read(|notice| {
                if notice.port != *own_port {
                    let news = transaction.note(&notice, table, &relevance.0);
                    changes.extend(news.into_iter().flatten());
                }
            });
            match has_more {
                Ok(true) => {}
                Ok(false) => return Ok(changes),
                Err(Error::AnswersLost) => {
                    // The end of its transaction may be among the lost notifications.
                    self.transaction = SeenTransaction::default();
                    changes.push(Tampering::Unknown);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for RulesWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl SeenTransaction {
    /// Adds a notification about `table`. The last one of a transaction returns its changes.
    fn note(
        &mut self,
        notice: &Notice<'_>,
        table: &str,
        is_relevant: &IsRelevant,
    ) -> [Option<Tampering>; 2] {
        if notice.kind >> 8 != NFNL_SUBSYS_NFTABLES {
            return [None, None];
        }
        let kind = notice.kind & 0xff;
        // The last message of a transaction, and the only one that names its process.
        if kind == NFT_MSG_NEWGEN {
            let Self {
                in_table,
                in_foreign,
            } = std::mem::take(self);
            let by = process(notice.payload);
            return [
                in_table.map(|what| Tampering::Changed { what, by }),
                in_foreign.then_some(Tampering::Foreign),
            ];
        }
        self.in_foreign |= is_relevant(kind, notice.payload);
        // The table's name is attribute 1 of every object.
        let name = find(contents(notice.payload), 1).ok().flatten();
        let family = notice.payload.first();
        let is_ours = [Some(&NFPROTO_INET), Some(&NFPROTO_ARP)].contains(&family)
            && name.is_some_and(|name| name.string().is_ok_and(|name| name == table));
        // When a table is deleted, the kernel notifies of its rules, sets and chains first. The
        // deletion of the table says more than the first of these.
        if is_ours && (self.in_table.is_none() || kind == NFT_MSG_DELTABLE) {
            self.in_table = Some(description(kind));
        }
        [None, None]
    }
}

/// Reads the process that made a transaction from its `NFT_MSG_NEWGEN`.
fn process(payload: &[u8]) -> Option<String> {
    let (mut pid, mut name) = (None, None);
    for attribute in contents(payload).map_while(Result::ok) {
        match attribute.kind {
            NFTA_GEN_PROC_PID => pid = attribute.u32_be().ok(),
            NFTA_GEN_PROC_NAME => name = attribute.string().ok(),
            _ => {}
        }
    }
    Some(format!("{} ({})", name?, pid?))
}

fn description(kind: u16) -> &'static str {
    match kind {
        NFT_MSG_NEWTABLE => "table added",
        NFT_MSG_DELTABLE => "table deleted",
        NFT_MSG_NEWCHAIN => "chain added",
        NFT_MSG_DELCHAIN => "chain deleted",
        NFT_MSG_NEWRULE => "rule added",
        NFT_MSG_DELRULE => "rule deleted",
        NFT_MSG_NEWSET => "set added",
        NFT_MSG_DELSET => "set deleted",
        NFT_MSG_NEWSETELEM => "element added",
        NFT_MSG_DELSETELEM => "element deleted",
        _ => "table changed",
    }
}
