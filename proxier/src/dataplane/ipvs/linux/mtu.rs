//! The MTU of our routes.
//!
//! Linux keeps no path MTU for a local IPv4 address outside `lo` (`__mkroute_output`), and IPVS rejects a packet of
//! this node that does not fit the way to its endpoint and has the flag "don't fragment" (`ensure_mtu_is_adequate`).
//! So processes of the node could not send large datagrams, and their TCP connections would stall behind a narrow
//! link. With a locked MTU, the kernel sends packets without the flag (`ip_dont_fragment`), and any
//! link on the way may fragment them. The smallest MTU of the node's links makes that rare.

use std::ops::RangeInclusive;

use netlink::Result;
use netlink::attr::{Writer, attributes};
use netlink::transport::Transport;

use super::link::{
    IFF_UP, IFLA_EXT_MASK, IFLA_IFNAME, IFLA_MTU, RTEXT_FILTER_SKIP_STATS, RTM_GETLINK,
};
use super::rtnetlink::split;
use crate::dataplane::ipvs::op::CARRIER;

/// The type of `lo`, from `include/uapi/linux/if_arp.h`.
const ARPHRD_LOOPBACK: u16 = 772;

/// The MTUs of our routes. Each link that carries IPv6 has at least the first; a narrower link is not worth small
/// packets to all endpoints. The kernel reduces more than the last (`ip_metrics_convert`), so that the route would
/// never equal the wanted one.
const SENSIBLE: RangeInclusive<u32> = 1280..=65_520;

/// Returns the smallest MTU of the links that may carry packets to endpoints; `None` without such links.
pub(super) fn smallest(transport: &mut Transport) -> Result<Option<u32>> {
    let all = |writer: &mut Writer<'_>| {
        writer.header(&[0; 16]);
        writer.u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    };
    let found = transport.list(RTM_GETLINK, "reading the MTUs of devices", all, read)?;
    let smallest = found.into_iter().min();
    Ok(smallest.map(|mtu| mtu.clamp(*SENSIBLE.start(), *SENSIBLE.end())))
}

/// Reads the MTU of a link; `None` if it is down, `lo` or the carrier.
fn read(payload: &[u8]) -> Result<Option<u32>> {
    let (header, rest) = split::<16>(payload)?;
    let [_, _, kind_a, kind_b, _, _, _, _, a, b, c, d, ..] = header;
    let is_up = u32::from_ne_bytes([a, b, c, d]) & IFF_UP != 0;
    if !is_up || u16::from_ne_bytes([kind_a, kind_b]) == ARPHRD_LOOPBACK {
        return Ok(None);
    }
    let mut mtu = None;
    for attribute in attributes(rest) {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_IFNAME if attribute.string()? == CARRIER => return Ok(None),
            IFLA_MTU => mtu = Some(attribute.u32()?),
            _ => {}
        }
    }
    Ok(mtu)
}
