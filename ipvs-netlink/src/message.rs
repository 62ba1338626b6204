//! Encodes and decodes IPVS messages.
//!
//! Requests have the same attributes in the same order as those of `ipvsadm`. Attributes that the
//! kernel ignores, and default values, are omitted (`tests/wire/difference.rs` lists them).
//! Decoders accept unknown attributes, any order, and missing attributes that have a default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::change::Change;
use crate::stats::Stats;
use crate::sys::{
    IPVS_CMD_ATTR_DEST, IPVS_CMD_ATTR_SERVICE, IPVS_CMD_DEL_DEST, IPVS_CMD_DEL_SERVICE,
    IPVS_CMD_NEW_DEST, IPVS_CMD_NEW_SERVICE, IPVS_CMD_SET_DEST, IPVS_CMD_SET_SERVICE,
    IPVS_GENL_VERSION, IPVS_STATS_ATTR_CONNS, IPVS_STATS_ATTR_CPS, IPVS_STATS_ATTR_INBPS,
    IPVS_STATS_ATTR_INBYTES, IPVS_STATS_ATTR_INPKTS, IPVS_STATS_ATTR_INPPS, IPVS_STATS_ATTR_OUTBPS,
    IPVS_STATS_ATTR_OUTBYTES, IPVS_STATS_ATTR_OUTPKTS, IPVS_STATS_ATTR_OUTPPS,
};
use netlink::Family;
use netlink::attr::{self, Attribute, Writer, attributes};
use netlink::batch::Batch;
use netlink::{Error, Result};

mod daemon;
mod destination;
mod service;
mod settings;

pub use daemon::{read_daemon, write_daemon, write_daemon_key};
pub use destination::{read_destination, write_destination, write_destination_key};
pub use service::{read_service, write_service, write_service_key};
pub use settings::{read_info, read_timeouts, write_timeouts};

/// The size of the generic-netlink header (`struct genlmsghdr`).
const GENL_HEADER: usize = 4;

/// Writes the generic-netlink header of `command`.
pub fn write_header(writer: &mut Writer<'_>, command: u8, version: u8) {
    writer.header(&[command, version, 0, 0]);
}

/// Returns the attributes of a generic-netlink message from its payload.
///
/// # Errors
/// If the payload is shorter than the generic-netlink header. If an attribute is malformed, its
/// item is an error and the last item.
pub fn read_attributes(payload: &[u8]) -> Result<impl Iterator<Item = Result<Attribute<'_>>>> {
    let rest = payload.get(GENL_HEADER..);
    Ok(attributes(rest.ok_or(Error::malformed(
        "a message is shorter than its generic-netlink header",
    ))?))
}

/// Returns the first attribute with number `kind` in a generic-netlink message's payload.
pub(crate) fn find(payload: &[u8], kind: u16) -> Result<Option<Attribute<'_>>> {
    attr::find(read_attributes(payload)?, kind)
}

/// Appends the request for `change` to `batch`.
///
/// `family` is the current number of the IPVS family ([`crate::Client::family`]).
///
/// # Errors
/// None in practice: [`Error::TooLong`] cannot occur, because all IPVS attributes are short.
pub fn push_change(batch: &mut Batch, family: u16, change: &Change) -> Result<()> {
    batch.push(family, 0, |writer| {
        let command = match change {
            Change::AddService(_) => IPVS_CMD_NEW_SERVICE,
            Change::SetService(_) => IPVS_CMD_SET_SERVICE,
            Change::DeleteService(_) => IPVS_CMD_DEL_SERVICE,
            Change::AddDestination(..) => IPVS_CMD_NEW_DEST,
            Change::SetDestination(..) => IPVS_CMD_SET_DEST,
            Change::DeleteDestination(..) => IPVS_CMD_DEL_DEST,
        };
        write_header(writer, command, IPVS_GENL_VERSION);
        match change {
            Change::AddService(service) | Change::SetService(service) => {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service(inner, service));
            }
            Change::DeleteService(key) => {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key));
            }
            Change::AddDestination(key, destination) | Change::SetDestination(key, destination) => {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key));
                writer.nested(IPVS_CMD_ATTR_DEST, |inner| {
                    write_destination(inner, destination)
                });
            }
            Change::DeleteDestination(key, destination) => {
                writer.nested(IPVS_CMD_ATTR_SERVICE, |inner| write_service_key(inner, key));
                writer.nested(IPVS_CMD_ATTR_DEST, |inner| {
                    write_destination_key(inner, destination);
                });
            }
        }
    })
}

// Same on all architectures (`include/linux/socket.h`).
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

fn family_number(family: Family) -> u16 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

fn read_family(attribute: &Attribute<'_>) -> Result<Family> {
    match attribute.u16()? {
        AF_INET => Ok(Family::V4),
        AF_INET6 => Ok(Family::V6),
        _ => Err(Error::malformed(
            "an address family is neither IPv4 nor IPv6",
        )),
    }
}

/// Encodes an address in the 16 bytes of `union nf_inet_addr`, as the kernel and `ipvsadm` do.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn read_address(attribute: &Attribute<'_>, family: Family) -> Result<IpAddr> {
    Ok(match family {
        Family::V4 => Ipv4Addr::from(attribute.array::<4>()?).into(),
        Family::V6 => Ipv6Addr::from(attribute.array::<16>()?).into(),
    })
}

/// Reads counters from the value of a `STATS` or `STATS64` attribute.
fn read_stats(attribute: &Attribute<'_>) -> Result<Stats> {
    let mut stats = Stats::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        let field = match attribute.kind {
            IPVS_STATS_ATTR_CONNS => &mut stats.connections,
            IPVS_STATS_ATTR_INPKTS => &mut stats.packets_in,
            IPVS_STATS_ATTR_OUTPKTS => &mut stats.packets_out,
            IPVS_STATS_ATTR_INBYTES => &mut stats.bytes_in,
            IPVS_STATS_ATTR_OUTBYTES => &mut stats.bytes_out,
            IPVS_STATS_ATTR_CPS => &mut stats.connection_rate,
            IPVS_STATS_ATTR_INPPS => &mut stats.packet_rate_in,
            IPVS_STATS_ATTR_OUTPPS => &mut stats.packet_rate_out,
            IPVS_STATS_ATTR_INBPS => &mut stats.byte_rate_in,
            IPVS_STATS_ATTR_OUTBPS => &mut stats.byte_rate_out,
            _ => continue,
        };
        // In `STATS` only the two byte counters have 64 bits, in `STATS64` all counters have. The
        // numbers of the attributes are the same.
        *field = match attribute.value.len() {
            0..8 => attribute.u32()?.into(),
            _ => attribute.u64()?,
        };
    }
    Ok(stats)
}

/// Returns `value`, or [`Error::Malformed`] with the text `missing`.
fn required<T>(value: Option<T>, missing: &'static str) -> Result<T> {
    value.ok_or_else(|| Error::malformed(missing))
}
