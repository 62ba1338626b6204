//! The carrier `kube-ipvs0`, and other devices by name.
//!
//! Layouts and numbers from `include/uapi/linux/if_link.h` and `if.h`.

use netlink::Result;
use netlink::attr::{Writer, attributes, find};
use netlink::batch::Batch;
use netlink::transport::{Answer, RequestError, Transport};
use netlink::{NLM_F_CREATE, NLM_F_EXCL};
use rustix::io::Errno;

use super::rtnetlink::{AF_INET6, split};
use crate::dataplane::ipvs::op::CARRIER;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
pub(crate) const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;

pub(crate) const IFLA_IFNAME: u16 = 3;
pub(crate) const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_IFALIAS: u16 = 20;
const IFLA_AF_SPEC: u16 = 26;
pub(super) const IFLA_EXT_MASK: u16 = 29;
pub(super) const RTEXT_FILTER_SKIP_STATS: u32 = 8;

/// In `IFLA_AF_SPEC`, nested under the number of the family.
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

pub(super) const IFF_UP: u32 = 1;
const IFF_NOARP: u32 = 0x80;

/// The alias of a carrier that ipvs-proxier created (`ip link` prints it).
///
/// It tells a later process whose the device is, even if the ledger is lost, and ends with the device.
const OUR_ALIAS: &str = "ipvs-proxier";

/// A network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) index: u32,
    /// Whether it has [`OUR_ALIAS`].
    pub(super) is_ours: bool,
    /// Whether it is up and gets no IPv6 address of its own.
    pub(super) is_ready: bool,
}

/// Finds a device by its name; `None` if it does not exist.
pub(super) fn find_link(transport: &mut Transport, name: &str) -> Result<Option<Device>> {
    let body = |writer: &mut Writer<'_>| {
        writer.header(&[0; 16]);
        writer.string(IFLA_IFNAME, name);
        // The kernel would sum up the statistics of all processors.
        writer.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    };
    let doing = "reading a device";
    match transport.query(RTM_GETLINK, doing, body, |message| {
        read_link(message.payload)
    }) {
        Err(error) if error.errno() == Some(Errno::NODEV) => Ok(None),
        other => other.map(Some),
    }
}

/// Creates the carrier and makes it ready.
///
/// All requests are in one datagram, which the kernel executes within one system call: a process that
/// is killed leaves no carrier without the alias.
pub(super) fn create_carrier(transport: &mut Transport) -> Result<Answer> {
    let mut batch = Batch::new();
    batch.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |writer| {
        write_carrier(writer, IFF_NOARP);
        writer.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
    })?;
    // Not with the creation, at which the kernel ignores an alias (`rtnl_create_link`).
    batch.push(RTM_SETLINK, 0, |writer| {
        write_carrier(writer, 0);
        writer.string(IFLA_IFALIAS, OUR_ALIAS);
    })?;
    push_preparation(&mut batch)?;
    first_failure(&transport.run(&mut batch)?)
}

/// Makes an existing carrier ready.
pub(super) fn prepare_carrier(transport: &mut Transport) -> Result<Answer> {
    let mut batch = Batch::new();
    push_preparation(&mut batch)?;
    first_failure(&transport.run(&mut batch)?)
}

/// Removes our alias from the carrier, so that it is no longer ours.
pub(super) fn release_carrier(transport: &mut Transport) -> Result<Answer> {
    let mut batch = Batch::new();
    batch.push(RTM_SETLINK, 0, |writer| {
        write_carrier(writer, 0);
        writer.bytes(IFLA_IFALIAS, &[]);
    })?;
    first_failure(&transport.run(&mut batch)?)
}

/// Deletes the carrier, and with it everything on it.
pub(super) fn delete_carrier(transport: &mut Transport) -> Result<Answer> {
    let mut batch = Batch::new();
    batch.push(RTM_DELLINK, 0, |writer| write_carrier(writer, 0))?;
    first_failure(&transport.run(&mut batch)?)
}

/// Pushes the requests that make a carrier ready. Their order matters: a device that comes up gets a
/// link-local address, unless its generation is off.
fn push_preparation(batch: &mut Batch) -> Result<()> {
    batch.push(RTM_SETLINK, 0, |writer| {
        write_carrier(writer, 0);
        writer.nested(IFLA_AF_SPEC, |families| {
            families.nested(AF_INET6.into(), |inet6| {
                inet6.u8(IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
            });
        });
    })?;
    // An IPv6 route needs a device that is up; an IPv4 route does not.
    batch.push(RTM_SETLINK, 0, |writer| {
        write_carrier(writer, IFF_NOARP | IFF_UP);
    })
}

/// Writes `struct ifinfomsg` that sets `flags`, and the name of the carrier.
fn write_carrier(writer: &mut Writer<'_>, flags: u32) {
    let mut header = [0; 16];
    // Flags, and which flags to change: the same bits, so that no other flag changes.
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    writer.header(&header);
    writer.string(IFLA_IFNAME, CARRIER);
}

/// Returns the first failure other than missing IPv6.
fn first_failure(answers: &[Answer]) -> Result<Answer> {
    // Without IPv6 in the kernel or on the device, nothing generates addresses (`do_setlink`).
    let is_without_ipv6 = |answer: &Answer| match answer {
        Err(RequestError::Refused(refusal)) => refusal.errno == Errno::AFNOSUPPORT,
        _ => false,
    };
    let failures = answers.iter().filter(|answer| answer.is_err());
    let mut failures = failures.filter(|answer| !is_without_ipv6(answer));
    Ok(failures.next().cloned().unwrap_or(Ok(())))
}

fn read_link(payload: &[u8]) -> Result<Device> {
    let (header, rest) = split::<16>(payload)?;
    let [_, _, _, _, a, b, c, d, e, f, g, h, ..] = header;
    let index = u32::from_ne_bytes([a, b, c, d]);
    let flags = u32::from_ne_bytes([e, f, g, h]);
    let alias = find(attributes(rest), IFLA_IFALIAS)?;
    let alias = alias.map(|alias| alias.string()).transpose()?;
    // Without IPv6, the device has no mode, and nothing generates addresses.
    let mode = address_generation(rest)?.unwrap_or(IN6_ADDR_GEN_MODE_NONE);
    let is_up = flags & (IFF_UP | IFF_NOARP) == IFF_UP | IFF_NOARP;
    Ok(Device {
        index,
        is_ours: alias == Some(OUR_ALIAS),
        is_ready: is_up && mode == IN6_ADDR_GEN_MODE_NONE,
    })
}

/// Reads how the kernel generates IPv6 addresses for a device; `None` if the device has no IPv6.
fn address_generation(attributes_of_link: &[u8]) -> Result<Option<u8>> {
    let Some(families) = find(attributes(attributes_of_link), IFLA_AF_SPEC)? else {
        return Ok(None);
    };
    let Some(inet6) = find(families.nested(), AF_INET6.into())? else {
        return Ok(None);
    };
    let mode = find(inet6.nested(), IFLA_INET6_ADDR_GEN_MODE)?;
    mode.map(|mode| mode.u8()).transpose()
}
