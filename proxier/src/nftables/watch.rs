//! Noticing that somebody else changed our table.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use ipvs_netlink::Error;
use ipvs_netlink::attr::attributes;
use ipvs_netlink::listener::{Listener, Notice};
use ipvs_netlink::transport::protocols;

use super::sys::*;

/// Listens for changes of one table by others.
///
/// Its file descriptor becomes readable when anybody changes the packet filter; [`Watch::read`] then
/// tells whether it was our table, and whether it was somebody else.
#[derive(Debug)]
pub struct Watch {
    listener: Listener,
    table: Box<str>,
    /// The sockets whose changes are no news.
    own_port: u32,
    /// What the transaction that is being told of has done so far.
    found: Option<&'static str>,
}

/// Somebody changed our table, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// A transaction of another process touched it.
    Changed {
        /// What was done first, or that the table was deleted.
        what: &'static str,
        /// The process, as the kernel names it, for example `nft (4711)`.
        by: Option<String>,
    },
    /// The kernel had more to tell than the socket could hold: anything may have happened.
    Unknown,
}

impl fmt::Display for Tampering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { what, by: None } => f.write_str(what),
            Self::Changed { what, by: Some(by) } => write!(f, "{what} by {by}"),
            Self::Unknown => f.write_str("notifications were lost"),
        }
    }
}

impl Watch {
    /// Listens for changes of the table `name` that do not come from the socket `own_port`
    /// ([`super::Client::port`]).
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(name: &str, own_port: u32) -> Result<Self, Error> {
        Ok(Self {
            listener: Listener::open(protocols::NETLINK_NETFILTER, &[NFNLGRP_NFTABLES])?,
            table: name.into(),
            own_port,
            found: None,
        })
    }

    /// Takes what news there are, without waiting.
    ///
    /// # Errors
    /// When the socket fails, but for lost notifications, which are [`Tampering::Unknown`].
    pub fn read(&mut self) -> Result<Vec<Tampering>, Error> {
        let mut news = Vec::new();
        loop {
            let Self {
                listener,
                table,
                own_port,
                found,
            } = self;
            let heard = listener.read(|notice| {
                news.extend(hear(&notice, table, *own_port, found));
            });
            match heard {
                Ok(true) => {}
                Ok(false) => return Ok(news),
                Err(Error::AnswersLost) => {
                    self.found = None;
                    news.push(Tampering::Unknown);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Takes one notification; the last one of a transaction makes news of what came before.
fn hear(
    notice: &Notice<'_>,
    table: &str,
    own_port: u32,
    found: &mut Option<&'static str>,
) -> Option<Tampering> {
    if notice.port == own_port || notice.kind >> 8 != NFNL_SUBSYS_NFTABLES {
        return None;
    }
    let kind = notice.kind & 0xff;
    let family = notice.payload.first().copied();
    let rest = notice.payload.get(4..).unwrap_or_default();
    if kind == NFT_MSG_NEWGEN {
        let by = process(rest);
        return found.take().map(|what| Tampering::Changed { what, by });
    }
    // The name of the table is the first attribute of every object.
    let name = attributes(rest)
        .map_while(Result::ok)
        .find(|it| it.kind == 1);
    let is_ours = family == Some(NFPROTO_INET)
        && name.is_some_and(|name| name.string().is_ok_and(|name| name == table));
    // Whoever deletes a table deletes what is in it first, and what matters is the table.
    if is_ours && (found.is_none() || kind == NFT_MSG_DELTABLE) {
        *found = Some(what(kind));
    }
    None
}

/// Who made a transaction, from the end of its notifications.
fn process(bytes: &[u8]) -> Option<String> {
    let (mut pid, mut name) = (None, None);
    for attribute in attributes(bytes).map_while(Result::ok) {
        match attribute.kind {
            NFTA_GEN_PROC_PID => pid = attribute.u32_be().ok(),
            NFTA_GEN_PROC_NAME => name = attribute.string().ok(),
            _ => {}
        }
    }
    Some(format!("{} ({})", name?, pid?))
}

fn what(kind: u16) -> &'static str {
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
        _ => "something changed",
    }
}
