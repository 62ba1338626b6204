//! The kernel's trace: what the rules of all programs do with packets that a rule with
//! [`crate::Statement::Trace`] chose.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use net::Protocol;
use netlink::Error;
use netlink::attr::{Attribute, find};
use netlink::listener::Listener;
use netlink::transport::protocols;

use crate::message::{contents, message_type};
use crate::sys::*;

/// A socket that receives the trace of its network namespace. Needs CAP_NET_ADMIN.
///
/// Its file descriptor is readable when a report is queued.
#[derive(Debug)]
pub struct Trace(Listener);

/// What a rule, or the end of a chain, did with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The packet's number. The kernel uses it again for a later packet.
    pub id: u32,
    /// The family of the table (`NFPROTO_*`).
    pub family: u8,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule's handle; `None` at the end of a chain.
    pub rule: Option<u64>,
    /// What became of the packet there.
    pub verdict: TracedVerdict,
    /// The packet, in the first report of each chain at a hook.
    pub packet: Option<TracedPacket>,
    /// The index of the device by which it arrived.
    pub input: Option<u32>,
    /// The index of the device by which it leaves.
    pub output: Option<u32>,
}

/// What becomes of a packet at a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TracedVerdict {
    /// The next rule, or the chain that jumped here, follows.
    Continue,
    /// The hook's other chains follow.
    Accept,
    /// It is dropped; a rule that rejects drops, too.
    Drop,
    /// Another chain follows.
    Chain(String),
    /// The rule keeps it.
    Other,
}

/// The addresses of a traced packet of TCP, UDP or SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedPacket {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its source.
    pub source: SocketAddr,
    /// Its destination.
    pub destination: SocketAddr,
    /// Whether it is a TCP reset.
    pub is_reset: bool,
}

impl Trace {
    /// Opens the socket. Open it before the rule that traces exists.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self, Error> {
        Listener::open(protocols::NETLINK_NETFILTER, &[NFNLGRP_NFTRACE]).map(Self)
    }

    /// Reads some of the queued reports, without waiting. Returns whether there were any.
    ///
    /// # Errors
    /// [`Error::AnswersLost`] if the kernel dropped reports because the queue was full; later ones follow.
    pub fn read(&mut self, mut each: impl FnMut(Traced)) -> Result<bool, Error> {
        self.0.read(|notice| {
            if notice.kind == message_type(NFT_MSG_TRACE) {
                // A malformed report is none.
                read(notice.payload).into_iter().for_each(&mut each);
            }
        })
    }
}

impl AsFd for Trace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn read(payload: &[u8]) -> Result<Traced, Error> {
    let mut traced = Traced {
        id: 0,
        family: payload.first().copied().unwrap_or_default(),
        table: String::new(),
        chain: String::new(),
        rule: None,
        verdict: TracedVerdict::Continue,
        packet: None,
        input: None,
        output: None,
    };
    let (mut network, mut transport) = (&[][..], &[][..]);
    for attribute in contents(payload) {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_TRACE_ID => traced.id = attribute.u32_be()?,
            NFTA_TRACE_TABLE => traced.table = attribute.string()?.to_owned(),
            NFTA_TRACE_CHAIN => traced.chain = attribute.string()?.to_owned(),
            NFTA_TRACE_RULE_HANDLE => {
                traced.rule = Some(u64::from_be_bytes(attribute.array()?));
            }
            NFTA_TRACE_VERDICT => traced.verdict = verdict(&attribute)?,
            NFTA_TRACE_POLICY if attribute.u32_be()? == NF_DROP.cast_unsigned() => {
                traced.verdict = TracedVerdict::Drop;
            }
            NFTA_TRACE_POLICY => traced.verdict = TracedVerdict::Accept,
            NFTA_TRACE_NETWORK_HEADER => network = attribute.value,
            NFTA_TRACE_TRANSPORT_HEADER => transport = attribute.value,
            NFTA_TRACE_IIF => traced.input = Some(attribute.u32_be()?),
            NFTA_TRACE_OIF => traced.output = Some(attribute.u32_be()?),
            _ => {}
        }
    }
    traced.packet = packet(network, transport);
    Ok(traced)
}

fn verdict(attribute: &Attribute<'_>) -> Result<TracedVerdict, Error> {
    let Some(code) = find(attribute.nested(), NFTA_VERDICT_CODE)? else {
        return Ok(TracedVerdict::Other);
    };
    Ok(match code.u32_be()?.cast_signed() {
        NFT_CONTINUE | NFT_RETURN => TracedVerdict::Continue,
        NFT_JUMP | NFT_GOTO => match find(attribute.nested(), NFTA_VERDICT_CHAIN)? {
            Some(chain) => TracedVerdict::Chain(chain.string()?.to_owned()),
            None => TracedVerdict::Other,
        },
        // The upper bits have an error number, or a queue (`NF_VERDICT_MASK`).
        code if code >= 0 && code & 0xff == NF_DROP => TracedVerdict::Drop,
        NF_ACCEPT => TracedVerdict::Accept,
        _ => TracedVerdict::Other,
    })
}

/// Reads the addresses of a packet from the begin of its headers (RFC 791, 8200, 9293).
fn packet(network: &[u8], transport: &[u8]) -> Option<TracedPacket> {
    const RESET: u8 = 1 << 2;
    let address = |at: usize| match network.first()? >> 4 {
        4 => Some(IpAddr::from(
            <[u8; 4]>::try_from(network.get(12 + 4 * at..16 + 4 * at)?).ok()?,
        )),
        _ => Some(IpAddr::from(
            <[u8; 16]>::try_from(network.get(8 + 16 * at..24 + 16 * at)?).ok()?,
        )),
    };
    let number = match network.first()? >> 4 {
        4 => *network.get(9)?,
        6 => *network.get(6)?,
        _ => return None,
    };
    let port = |at: usize| {
        Some(u16::from_be_bytes(
            transport.get(at..at + 2)?.try_into().ok()?,
        ))
    };
    let protocol = Protocol::from_number(number)?;
    let flags = transport.get(13).copied().unwrap_or_default();
    Some(TracedPacket {
        protocol,
        source: SocketAddr::new(address(0)?, port(0)?),
        destination: SocketAddr::new(address(1)?, port(2)?),
        is_reset: protocol == Protocol::Tcp && flags & RESET != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_addresses_and_the_reset() {
        let mut v4 = [0; 20];
        v4[0] = 0x45;
        v4[9] = 6;
        v4[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let mut tcp = [0; 20];
        tcp[..4].copy_from_slice(&[0, 80, 0x1f, 0x90]);
        tcp[13] = 0x14;
        let found = packet(&v4, &tcp).unwrap();
        assert_eq!(found.source, "10.0.0.1:80".parse().unwrap());
        assert_eq!(found.destination, "10.0.0.2:8080".parse().unwrap());
        assert!(found.is_reset);
        let mut v6 = [0; 40];
        v6[0] = 0x60;
        v6[6] = 17;
        v6[23] = 1;
        v6[39] = 2;
        let found = packet(&v6, &tcp[..8]).unwrap();
        assert_eq!(found.source, "[::1]:80".parse().unwrap());
        assert_eq!(found.destination, "[::2]:8080".parse().unwrap());
        assert!(!found.is_reset);
        // Headers that end too early, and other protocols.
        assert_eq!(packet(&v4[..18], &tcp), None);
        assert_eq!(packet(&v4, &tcp[..3]), None);
        v4[9] = 1;
        assert_eq!(packet(&v4, &tcp), None);
        assert_eq!(packet(&[], &[]), None);
    }
}
