//! The rtnetlink messages for routes and addresses: encoding and decoding.
//!
//! Layouts and numbers from `include/uapi/linux/rtnetlink.h` and `if_addr.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::attr::{Attribute, Writer, attributes};
use netlink::{Error, Result};

use crate::plan::SourceFlaw;

pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
pub(super) const RTM_GETADDR: u16 = 22;
pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
pub(crate) const RTM_GETROUTE: u16 = 26;

const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;

/// The protocol of the routes that the kernel makes for the addresses of interfaces.
pub(super) const RTPROT_KERNEL: u8 = 2;

pub(super) const RT_TABLE_LOCAL: u8 = 255;
/// The scope of addresses that only hosts on the same link can use; narrower scopes have larger numbers.
pub(super) const RT_SCOPE_LINK: u8 = 253;
pub(super) const RT_SCOPE_HOST: u8 = 254;
pub(super) const RTN_LOCAL: u8 = 2;

pub(super) const RTN_UNICAST: u8 = 1;

pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;

// Nested in RTA_METRICS.
const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;
/// In `RTAX_LOCK`: the MTU is locked.
const LOCKED_MTU: u32 = 1 << RTAX_MTU;

const IFA_ADDRESS: u16 = 1;
pub(super) const IFA_LOCAL: u16 = 2;
/// The name of an IPv4 address: that of its device, perhaps followed by a colon and text.
pub(super) const IFA_LABEL: u16 = 3;
/// All flags; the header has the lowest eight only.
const IFA_FLAGS: u16 = 8;

const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// The index of `lo`, the same in every network namespace.
pub(super) const LOOPBACK_INDEX: u32 = 1;

/// The `rtm_protocol` of our routes: a route is owned if it has this number.
///
/// iproute2's `rt_protos` assigns it to no other program. The kernel's own local routes have 2.
pub(super) const OUR_PROTOCOL: u8 = 73;

/// The metrics of our routes on the carrier and on `lo`.
///
/// The kernel keeps routes to one address beside each other only if their metrics differ. The route
/// of an interface's address has metric 0, so that ours neither fails with `EEXIST` nor is used while
/// an interface has the address. The two forms differ too: a switch adds one before it deletes the
/// other.
pub(super) const CARRIER_METRIC: u32 = 73;
pub(super) const LOOPBACK_METRIC: u32 = 74;

/// A route that makes one address local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalRoute {
    pub(super) address: IpAddr,
    pub(super) source: Option<IpAddr>,
    /// The index of its device; 0 in a request means any.
    pub(super) device: u32,
    pub(super) metric: u32,
    /// Its locked MTU; `None` if its MTU is not locked.
    pub(super) mtu: Option<u32>,
    pub(super) protocol: u8,
}

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) address: IpAddr,
    pub(super) prefix_length: u8,
    pub(super) interface: u32,
    /// Its `IFA_FLAGS`; 0 in a request.
    pub(super) flags: u32,
}

impl InterfaceAddress {
    /// Returns the address as a service has it: without a network.
    pub(super) fn single(address: IpAddr, interface: u32) -> Self {
        Self {
            address,
            prefix_length: family(address).1,
            interface,
            flags: 0,
        }
    }

    /// Returns why it should not be the source of a route.
    pub(super) fn flaw(&self) -> Option<SourceFlaw> {
        let has = |flag| self.flags & flag != 0;
        // The kernel rejects a route with such a source (`ipv6_chk_addr`).
        if has(IFA_F_DADFAILED) || has(IFA_F_TENTATIVE) && !has(IFA_F_OPTIMISTIC) {
            return Some(SourceFlaw::Unusable);
        }
        has(IFA_F_DEPRECATED).then_some(SourceFlaw::Deprecated)
    }

    /// Returns whether it has no network.
    pub(super) fn is_single(&self) -> bool {
        self.prefix_length == family(self.address).1
    }
}

/// Writes the body of a request for a local route (`struct rtmsg`, then attributes).
pub(super) fn write_route(writer: &mut Writer<'_>, route: &LocalRoute) {
    let (family, length) = family(route.address);
    writer.header(&[
        family,
        length,
        0,
        0,
        RT_TABLE_LOCAL,
        route.protocol,
        RT_SCOPE_HOST,
        RTN_LOCAL,
        0,
        0,
        0,
        0,
    ]);
    write_address(writer, RTA_DST, route.address);
    if route.device != 0 {
        writer.u32(RTA_OIF, route.device);
    }
    writer.u32(RTA_PRIORITY, route.metric);
    if let Some(source) = route.source {
        write_address(writer, RTA_PREFSRC, source);
    }
    if let Some(mtu) = route.mtu {
        writer.nested(RTA_METRICS, |metrics| {
            metrics.u32(RTAX_LOCK, LOCKED_MTU);
            metrics.u32(RTAX_MTU, mtu);
        });
    }
}

/// Writes the body of a dump request for the local routes of a family.
///
/// The kernel filters by table and type ([`netlink::transport::Transport::filter_dumps`]): a
/// node may have 100,000 routes in other tables. It would not filter a request for both families,
/// because MPLS rejects one with a table.
pub(super) fn write_local_routes(writer: &mut Writer<'_>, family: u8) {
    let table = RT_TABLE_LOCAL;
    writer.header(&[family, 0, 0, 0, table, 0, 0, RTN_LOCAL, 0, 0, 0, 0]);
}

/// Writes the body of a dump request for the addresses of both families on `interface`; 0 means all.
pub(super) fn write_addresses_on(writer: &mut Writer<'_>, interface: u32) {
    let [a, b, c, d] = interface.to_ne_bytes();
    writer.header(&[AF_UNSPEC, 0, 0, 0, a, b, c, d]);
}

/// Parses a route that makes a single address local.
///
/// `None` for any other route, such as the one of 127.0.0.0/8, and for the kernel's routes of the
/// addresses of interfaces.
pub(super) fn read_local_route(payload: &[u8]) -> Result<Option<LocalRoute>> {
    let (header, rest) = split::<12>(payload)?;
    let [family, length, _, _, table, protocol, _, kind, ..] = header;
    if (table, kind) != (RT_TABLE_LOCAL, RTN_LOCAL) || protocol == RTPROT_KERNEL {
        return Ok(None);
    }
    let (mut address, mut source) = (None, None);
    let (mut device, mut metric, mut mtu) = (0, 0, None);
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_DST => address = read_address(&attribute, family)?,
            RTA_PREFSRC => source = read_address(&attribute, family)?,
            RTA_OIF => device = attribute.u32()?,
            RTA_PRIORITY => metric = attribute.u32()?,
            RTA_METRICS => mtu = read_locked_mtu(&attribute)?,
            _ => {}
        }
    }
    let is_single = |address: &IpAddr| self::family(*address).1 == length;
    Ok(address.filter(is_single).map(|address| LocalRoute {
        address,
        source,
        device,
        metric,
        mtu,
        protocol,
    }))
}

fn read_locked_mtu(metrics: &Attribute<'_>) -> Result<Option<u32>> {
    let (mut locks, mut mtu) = (0, None);
    for attribute in metrics.nested() {
        let attribute = attribute?;
        match attribute.kind {
            RTAX_LOCK => locks = attribute.u32()?,
            RTAX_MTU => mtu = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(mtu.filter(|_| locks & LOCKED_MTU != 0))
}

/// Writes the body of a request for an address on an interface (`struct ifaddrmsg`, then attributes).
pub(super) fn write_interface_address(writer: &mut Writer<'_>, address: &InterfaceAddress) {
    let (family, _) = family(address.address);
    let length = address.prefix_length;
    let [a, b, c, d] = address.interface.to_ne_bytes();
    writer.header(&[family, length, 0, 0, a, b, c, d]);
    // Both, as iproute2 sends them: the address has no peer.
    write_address(writer, IFA_LOCAL, address.address);
    write_address(writer, IFA_ADDRESS, address.address);
}

/// Parses an address on an interface; `None` if it is no IP address.
pub(super) fn read_interface_address(payload: &[u8]) -> Result<Option<InterfaceAddress>> {
    let (header, rest) = split::<8>(payload)?;
    let [family, prefix_length, flags, _, a, b, c, d] = header;
    let (mut local, mut address, mut flags) = (None, None, u32::from(flags));
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            // On a point-to-point link, IFA_ADDRESS is the address of the peer.
            IFA_LOCAL => local = read_address(&attribute, family)?,
            IFA_ADDRESS => address = read_address(&attribute, family)?,
            IFA_FLAGS => flags = attribute.u32()?,
            _ => {}
        }
    }
    let interface = u32::from_ne_bytes([a, b, c, d]);
    Ok(local.or(address).map(|address| InterfaceAddress {
        address,
        prefix_length,
        interface,
        flags,
    }))
}

/// Returns the family's number and the full prefix length of an address.
fn family(address: IpAddr) -> (u8, u8) {
    match address {
        IpAddr::V4(_) => (AF_INET, 32),
        IpAddr::V6(_) => (AF_INET6, 128),
    }
}

pub(crate) fn write_address(writer: &mut Writer<'_>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => writer.bytes(kind, &v4.octets()),
        IpAddr::V6(v6) => writer.bytes(kind, &v6.octets()),
    }
}

pub(super) fn read_address(attribute: &Attribute<'_>, family: u8) -> Result<Option<IpAddr>> {
    Ok(match family {
        AF_INET => Some(Ipv4Addr::from(attribute.array::<4>()?).into()),
        AF_INET6 => Some(Ipv6Addr::from(attribute.array::<16>()?).into()),
        _ => None,
    })
}

/// Splits the fixed header from a message.
pub(crate) fn split<const N: usize>(payload: &[u8]) -> Result<([u8; N], &[u8])> {
    let split = payload
        .split_first_chunk::<N>()
        .map(|(header, rest)| (*header, rest));
    split.ok_or(Error::Malformed {
        what: "an rtnetlink message without its header",
    })
}
