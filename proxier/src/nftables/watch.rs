//! Noticing that somebody else changed our table, or took answers their way.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use ipvs_netlink::Error;
use ipvs_netlink::attr::find;
use ipvs_netlink::listener::{Listener, Notice};
use ipvs_netlink::transport::protocols;

use super::forwarding;
use super::message::contents;
use super::sys::*;

/// Listens for changes of one table by others, and of forward chains that matter to
/// [`super::Forwarding`].
///
/// Its file descriptor becomes readable when anybody changes the packet filter; [`Watch::read`] then
/// tells whether it was our table, and whether it was somebody else.
#[derive(Debug)]
pub struct Watch {
    listener: Listener,
    table: Box<str>,
    /// The socket whose changes are no news.
    own_port: u32,
    /// What the transaction that is being told of has done so far.
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    /// What was done to our table.
    in_table: Option<&'static str>,
    /// Whether answers may have lost their way.
    in_forward: bool,
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
    /// There is a forward chain that drops, which may be new or have other rules now; or our rule in
    /// such a chain is gone.
    Forwarding,
    /// The kernel had more to tell than the socket could hold: anything may have happened.
    Unknown,
}

impl Tampering {
    /// Whether our table may be another than before.
    pub fn concerns_our_table(&self) -> bool {
        matches!(self, Self::Changed { .. } | Self::Unknown)
    }

    /// Whether [`super::Forwarding::apply`] may find something to do.
    pub fn concerns_forwarding(&self) -> bool {
        matches!(self, Self::Forwarding | Self::Unknown)
    }
}

impl fmt::Display for Tampering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed { what, by: None } => f.write_str(what),
            Self::Changed { what, by: Some(by) } => write!(f, "{what} by {by}"),
            Self::Forwarding => f.write_str("a forward chain changed"),
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
            found: Found::default(),
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
                hear(&notice, table, *own_port, found, &mut news);
            });
            match heard {
                Ok(true) => {}
                Ok(false) => return Ok(news),
                Err(Error::AnswersLost) => {
                    self.found = Found::default();
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
    found: &mut Found,
    news: &mut Vec<Tampering>,
) {
    if notice.port == own_port || notice.kind >> 8 != NFNL_SUBSYS_NFTABLES {
        return;
    }
    let kind = notice.kind & 0xff;
    let family = notice.payload.first().copied();
    if kind == NFT_MSG_NEWGEN {
        let Found {
            in_table,
            in_forward,
        } = std::mem::take(found);
        let by = process(notice.payload);
        news.extend(in_table.map(|what| Tampering::Changed { what, by }));
        news.extend(in_forward.then_some(Tampering::Forwarding));
        return;
    }
    found.in_forward |= match kind {
        NFT_MSG_NEWCHAIN => forwarding::has_drop_policy(notice.payload),
        NFT_MSG_DELRULE => forwarding::author(notice.payload).is_some(),
        _ => false,
    };
    // The name of the table is the first attribute of every object.
    let name = find(contents(notice.payload), 1).ok().flatten();
    let is_ours = family == Some(NFPROTO_INET)
        && name.is_some_and(|name| name.string().is_ok_and(|name| name == table));
    // Whoever deletes a table deletes what is in it first, and what matters is the table.
    if is_ours && (found.in_table.is_none() || kind == NFT_MSG_DELTABLE) {
        found.in_table = Some(what(kind));
    }
}

/// Who made a transaction, from the end of its notifications.
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
