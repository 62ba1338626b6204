//! Tracked connections as the kernel lists them.

use std::net::{IpAddr, SocketAddr};

use netlink::attr::{Attribute, attributes};
use netlink::{Error, Result};

use super::sys::*;
use crate::cluster::model::Protocol;
use crate::plan::frontend::Frontend;

/// A tracked connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its protocol.
    pub protocol: Protocol,
    /// The addresses of the client's packets.
    pub original: Tuple,
    /// The addresses of the expected replies.
    pub reply: Tuple,
    /// Whether the kernel has seen a reply.
    pub is_answered: bool,
    /// Whether a NAT rule translates its destination. IPVS translates without one.
    pub is_translated: bool,
    /// Whether it is an established TCP connection.
    pub is_established: bool,
    /// After how many seconds without a packet the kernel forgets it.
    pub seconds_left: u32,
    /// The attributes that identify the flow in a request.
    pub(super) handle: Handle,
}

impl Flow {
    /// Returns the frontend to which the client sent its packets.
    pub(crate) fn frontend(&self) -> Frontend {
        Frontend {
            address: self.original.destination.ip(),
            protocol: self.protocol,
            port: self.original.destination.port(),
        }
    }
}

/// The addresses of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// The source.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
}

impl Tuple {
    /// Returns the tuple with source and destination swapped.
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
        }
    }
}

/// The attributes that identify one tracked connection, as the kernel sent them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) original: Box<[u8]>,
    pub(super) id: Option<[u8; 4]>,
    pub(super) zone: Option<[u8; 2]>,
}

/// Parses a message of a dump, without its fixed header. Returns `None` for protocols that a Service
/// port cannot have, such as ICMP.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Flow>> {
    let (mut original, mut reply) = (None, None);
    let (mut status, mut is_established, mut seconds_left) = (0, false, 0);
    let mut handle = Handle::default();
    for attribute in attributes(bytes) {
        let attribute = attribute?;
        match attribute.kind {
            CTA_TUPLE_ORIG => {
                original = tuple(&attribute)?;
                // Kept as bytes and sent back unchanged, so that no attribute is lost.
                handle.original = attribute.value.into();
            }
            CTA_TUPLE_REPLY => reply = tuple(&attribute)?,
            CTA_STATUS => status = attribute.u32_be()?,
            CTA_TIMEOUT => seconds_left = attribute.u32_be()?,
            CTA_PROTOINFO => is_established = established(&attribute)?,
            CTA_ID => handle.id = Some(attribute.array()?),
            CTA_ZONE => handle.zone = Some(attribute.array()?),
            _ => {}
        }
    }
    Ok(original
        .zip(reply)
        .map(|((protocol, original), (_, reply))| Flow {
            protocol,
            original,
            reply,
            is_answered: status & IPS_SEEN_REPLY != 0,
            is_translated: status & IPS_DST_NAT != 0,
            is_established,
            seconds_left,
            handle,
        }))
}

/// Returns whether the state of a protocol is that of an established TCP connection.
fn established(attribute: &Attribute<'_>) -> Result<bool> {
    for protocol in attribute.nested() {
        let protocol = protocol?;
        if protocol.kind != CTA_PROTOINFO_TCP {
            continue;
        }
        for field in protocol.nested() {
            let field = field?;
            if field.kind == CTA_PROTOINFO_TCP_STATE {
                return Ok(field.u8()? == TCP_CONNTRACK_ESTABLISHED);
            }
        }
    }
    Ok(false)
}

/// Parses the addresses of one direction; `None` for the protocols that [`read`] ignores.
fn tuple(attribute: &Attribute<'_>) -> Result<Option<(Protocol, Tuple)>> {
    let (mut source, mut destination) = (None, None);
    let (mut protocol, mut source_port, mut destination_port) = (None, 0, 0);
    for part in attribute.nested() {
        let part = part?;
        for field in part.nested() {
            let field = field?;
            match (part.kind, field.kind) {
                (CTA_TUPLE_IP, CTA_IP_V4_SRC) => source = Some(IpAddr::from(field.array::<4>()?)),
                (CTA_TUPLE_IP, CTA_IP_V4_DST) => {
                    destination = Some(IpAddr::from(field.array::<4>()?))
                }
                (CTA_TUPLE_IP, CTA_IP_V6_SRC) => source = Some(IpAddr::from(field.array::<16>()?)),
                (CTA_TUPLE_IP, CTA_IP_V6_DST) => {
                    destination = Some(IpAddr::from(field.array::<16>()?))
                }
                (CTA_TUPLE_PROTO, CTA_PROTO_NUM) => protocol = Protocol::from_number(field.u8()?),
                (CTA_TUPLE_PROTO, CTA_PROTO_SRC_PORT) => source_port = field.u16_be()?,
                (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => destination_port = field.u16_be()?,
                _ => {}
            }
        }
    }
    let (Some(source), Some(destination)) = (source, destination) else {
        return Err(Error::Malformed {
            what: "a tracked connection without its addresses",
        });
    };
    Ok(protocol.map(|protocol| {
        let tuple = Tuple {
            source: (source, source_port).into(),
            destination: (destination, destination_port).into(),
        };
        (protocol, tuple)
    }))
}
