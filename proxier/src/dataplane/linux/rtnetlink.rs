//! The rtnetlink messages for service addresses: encoding and decoding.
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

/// The `rtm_protocol` of our routes: a route is owned if it has this number.
///
/// iproute2's `rt_protos` assigns it to no other program. The kernel's own local routes have 2.
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

/// Writes the body of a request for one of our local routes (`struct rtmsg`, then attributes).
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

/// Writes the body of a dump request for both families.
///
/// 16 zero bytes suffice for every kind of dump: no header here is longer, and `AF_UNSPEC` is 0.
pub(super) fn write_all(writer: &mut Writer<'_>) {
    writer.header(&[AF_UNSPEC; 16]);
}

/// Parses a route; `None` if it is not ours.
pub(super) fn read_route(payload: &[u8]) -> Result<Option<LocalRoute>> {
    let route = read_local_route(payload)?;
    let ours = route.filter(|(_, protocol)| *protocol == OUR_PROTOCOL);
    Ok(ours.map(|(route, _)| route))
}

/// Parses a foreign local route; returns its address and protocol, or `None` for any other route.
///
/// The kernel's own routes are no foreign ones: they belong to the addresses of interfaces.
pub(super) fn read_foreign_route(payload: &[u8]) -> Result<Option<(IpAddr, u8)>> {
    let route = read_local_route(payload)?;
    let foreign = route.filter(|(_, protocol)| ![OUR_PROTOCOL, RTPROT_KERNEL].contains(protocol));
    Ok(foreign.map(|(route, protocol)| (route.address, protocol)))
}

/// Parses a route that makes a single address local; returns it with its protocol.
///
/// `None` for any other route, such as the one of 127.0.0.0/8.
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
    let is_single = |address: &IpAddr| self::family(*address).1 == length;
    let route = |address| LocalRoute { address, source };
    Ok(address
        .filter(is_single)
        .map(|address| (route(address), protocol)))
}

/// Writes the body of a request for an address on an interface (`struct ifaddrmsg`, then attributes).
pub(super) fn write_interface_address(writer: &mut Writer<'_>, address: &InterfaceAddress) {
    let (family, length) = family(address.address);
    let [a, b, c, d] = address.interface.to_ne_bytes();
    writer.header(&[family, length, 0, 0, a, b, c, d]);
    write_address(writer, IFA_LOCAL, address.address);
    write_address(writer, IFA_ADDRESS, address.address);
}

/// Parses an address on an interface; `None` if it is no IP address.
pub(super) fn read_interface_address(payload: &[u8]) -> Result<Option<InterfaceAddress>> {
    let (header, rest) = split::<8>(payload)?;
    let [family, _, _, _, a, b, c, d] = header;
    let (mut local, mut address) = (None, None);
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            // On a point-to-point link, IFA_ADDRESS is the address of the peer.
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

/// Writes the body of a request to create the dummy device `name` (`struct ifinfomsg`, then attributes).
pub(super) fn write_dummy_device(writer: &mut Writer<'_>, name: &str) {
    writer.header(&[0; 16]);
    writer.string(IFLA_IFNAME, name);
    writer.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "dummy"));
}

/// Parses a device; returns its index if its name is `name`.
pub(super) fn read_device_named(payload: &[u8], name: &str) -> Result<Option<u32>> {
    let (header, rest) = split::<16>(payload)?;
    let index = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
    let found = find(attributes(rest), IFLA_IFNAME)?;
    let found = found.map(|found| found.string()).transpose()?;
    Ok((found == Some(name)).then_some(index))
}

/// Returns the family's number and the full prefix length of an address.
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
