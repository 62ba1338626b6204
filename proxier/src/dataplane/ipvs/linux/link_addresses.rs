//! The addresses with which the node would send ARP requests if it had no service addresses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use netlink::attr::attributes;
use netlink::transport::{Transport, protocols};

use super::rtnetlink::{AF_INET, IFA_LABEL, IFA_LOCAL, RT_SCOPE_LINK, RTM_GETADDR, split};
use crate::dataplane::Failure;
use crate::dataplane::ipvs::op::CARRIER;

/// In `struct ifaddrmsg`: the device has an earlier address in the same network.
const IFA_F_SECONDARY: u8 = 1;

/// Reads the first primary address of each link.
pub(super) fn read() -> Result<BTreeMap<Arc<str>, Ipv4Addr>, Failure> {
    let addresses = Transport::open(protocols::NETLINK_ROUTE)?.list(
        RTM_GETADDR,
        "reading the addresses of links",
        |writer| writer.header(&[AF_INET, 0, 0, 0, 0, 0, 0, 0]),
        read_address,
    )?;
    let mut links = BTreeMap::new();
    for (link, address) in addresses {
        // The kernel takes the first one too (`inet_select_addr`).
        links.entry(link).or_insert(address);
    }
    Ok(links)
}

/// Reads a link and its address; `None` if ARP requests do not carry this address.
fn read_address(payload: &[u8]) -> netlink::Result<Option<(Arc<str>, Ipv4Addr)>> {
    let ([family, _, flags, scope, ..], contents) = split::<8>(payload)?;
    if family != AF_INET || flags & IFA_F_SECONDARY != 0 || scope >= RT_SCOPE_LINK {
        return Ok(None);
    }
    let (mut label, mut address) = ("", None);
    for attribute in attributes(contents) {
        let attribute = attribute?;
        match attribute.kind {
            IFA_LOCAL => address = Some(Ipv4Addr::from(attribute.array::<4>()?)),
            IFA_LABEL => label = attribute.string()?,
            _ => {}
        }
    }
    let link = label.split(':').next().unwrap_or_default();
    let is_of_link = !link.is_empty() && link != CARRIER;
    let is_own = |it: &Ipv4Addr| is_of_link && !it.is_loopback() && !it.is_link_local();
    Ok(address.filter(is_own).map(|address| (link.into(), address)))
}
