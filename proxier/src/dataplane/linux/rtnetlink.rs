//! The few messages of rtnetlink that service addresses need: bytes to values and back.
//!
//! Layouts and numbers from `include/uapi/linux/rtnetlink.h`, `if_addr.h` and `if_link.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipvs_netlink::attr::{Attribute, Writer, attributes, find};
use ipvs_netlink::{Error, Result};

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(super) const RTM_GETROUTE: u16 = 26;

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const RTPROT_KERNEL: u8 = 2;

const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;

/// The index of `lo`, the same in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Our number among the origins of routes (`rtm_protocol`): what carries it is ours. Unassigned in
/// iproute2's `rt_protos`; the kernel itself uses 2 for local routes.
pub(super) const OUR_PROTOCOL: u8 = 73;

/// A route that makes one address local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalRoute {
    pub(super) address: IpAddr,
    pub(super) source: Option<IpAddr>,
}

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) address: IpAddr,
    pub(super) interface: u32,
}

/// The body of a request about a local route of ours (`struct rtmsg`, then attributes).
pub(super) fn write_route(writer: &mut Writer<'_>, route: &LocalRoute) {
    let (family, length) = family(route.address);
    writer.header(&[
        family,
        length,
        0,
        0,
        RT_TABLE_LOCAL,
        OUR_PROTOCOL,
        RT_SCOPE_HOST,
        RTN_LOCAL,
        0,
        0,
        0,
        0,
    ]);
    write_address(writer, RTA_DST, route.address);
    writer.u32(RTA_OIF, LOOPBACK_INDEX);
    if let Some(source) = route.source {
        write_address(writer, RTA_PREFSRC, source);
    }
}

/// The body of a dump of routes of both families.
pub(super) fn write_all(writer: &mut Writer<'_>) {
    writer.header(&[AF_UNSPEC; 16]);
}

/// Reads a route; `None` when it is not one of ours.
pub(super) fn read_route(payload: &[u8]) -> Result<Option<LocalRoute>> {
    let route = read_local_route(payload)?;
    let ours = route.filter(|(_, protocol)| *protocol == OUR_PROTOCOL);
    Ok(ours.map(|(route, _)| route))
}

/// Reads a route; `None` unless somebody else made an address local by it. The kernel makes such
/// routes, too, for the addresses of interfaces.
pub(super) fn read_foreign_route(payload: &[u8]) -> Result<Option<(IpAddr, u8)>> {
    let route = read_local_route(payload)?;
    let theirs = route.filter(|(_, protocol)| ![OUR_PROTOCOL, RTPROT_KERNEL].contains(protocol));
    Ok(theirs.map(|(route, protocol)| (route.address, protocol)))
}

/// Reads a route that makes one address local, and its protocol; `None` when it is another one.
fn read_local_route(payload: &[u8]) -> Result<Option<(LocalRoute, u8)>> {
    let (header, rest) = split::<12>(payload)?;
    let [family, length, _, _, table, protocol, _, kind, ..] = header;
    if (table, kind) != (RT_TABLE_LOCAL, RTN_LOCAL) {
        return Ok(None);
    }
    let (mut address, mut source) = (None, None);
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_DST => address = read_address(&attribute, family)?,
            RTA_PREFSRC => source = read_address(&attribute, family)?,
            _ => {}
        }
    }
    let whole = |address: &IpAddr| self::family(*address).1 == length;
    let route = |address| LocalRoute { address, source };
    Ok(address
        .filter(whole)
        .map(|address| (route(address), protocol)))
}

/// The body of a request about an address on an interface (`struct ifaddrmsg`, then attributes).
pub(super) fn write_interface_address(writer: &mut Writer<'_>, address: &InterfaceAddress) {
    let (family, length) = family(address.address);
    let [a, b, c, d] = address.interface.to_ne_bytes();
    writer.header(&[family, length, 0, 0, a, b, c, d]);
    write_address(writer, IFA_LOCAL, address.address);
    write_address(writer, IFA_ADDRESS, address.address);
}

/// Reads an address on an interface; `None` when it is of another family than IP.
pub(super) fn read_interface_address(payload: &[u8]) -> Result<Option<InterfaceAddress>> {
    let (header, rest) = split::<8>(payload)?;
    let [family, _, _, _, a, b, c, d] = header;
    let (mut local, mut address) = (None, None);
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            // On a point-to-point link IFA_ADDRESS is the other end.
            IFA_LOCAL => local = read_address(&attribute, family)?,
            IFA_ADDRESS => address = read_address(&attribute, family)?,
            _ => {}
        }
    }
    let interface = u32::from_ne_bytes([a, b, c, d]);
    Ok(local
        .or(address)
        .map(|address| InterfaceAddress { address, interface }))
}

/// The body of a request to create the dummy device `name` (`struct ifinfomsg`, then attributes).
pub(super) fn write_dummy_device(writer: &mut Writer<'_>, name: &str) {
    writer.header(&[0; 16]);
    writer.string(IFLA_IFNAME, name);
    writer.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
}

/// Reads a device's index, if its name is `name`.
pub(super) fn read_device_named(payload: &[u8], name: &str) -> Result<Option<u32>> {
    let (header, rest) = split::<16>(payload)?;
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let found = find(attributes(rest), IFLA_IFNAME)?;
    let found = found.map(|found| found.string()).transpose()?;
    Ok((found == Some(name)).then_some(index))
}

/// The number of an address's family and the length of its prefix.
fn family(address: IpAddr) -> (u8, u8) {
    match address {
        IpAddr::V4(_) => (AF_INET, 32),
        IpAddr::V6(_) => (AF_INET6, 128),
    }
}

fn write_address(writer: &mut Writer<'_>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => writer.bytes(kind, &v4.octets()),
        IpAddr::V6(v6) => writer.bytes(kind, &v6.octets()),
    }
}

fn read_address(attribute: &Attribute<'_>, family: u8) -> Result<Option<IpAddr>> {
    Ok(match family {
        AF_INET => Some(Ipv4Addr::from(attribute.array::<4>()?).into()),
        AF_INET6 => Some(Ipv6Addr::from(attribute.array::<16>()?).into()),
        _ => None,
    })
}

fn split<const N: usize>(payload: &[u8]) -> Result<([u8; N], &[u8])> {
    let split = payload
        .split_first_chunk::<N>()
        .map(|(header, rest)| (*header, rest));
    split.ok_or(Error::Malformed {
        what: "an rtnetlink message without its header",
    })
}
