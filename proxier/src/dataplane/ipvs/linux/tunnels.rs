//! The far ends of tunnels: addresses that other machines have.
//!
//! In a network of VXLAN no route leads over the addresses of other nodes: flannel and Calico write them into the forwarding
//! databases of their devices. Layouts and numbers from `include/uapi/linux/neighbour.h`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::attr::attributes;
use netlink::transport::Transport;

use super::rtnetlink::{AF_INET, AF_INET6, read_address, split};

const AF_BRIDGE: u8 = 7;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;

/// Reads the far ends in the forwarding databases of all devices.
///
/// # Cost
/// Linear in their entries, of which a bridge has one for each Pod, and VXLAN one for each node.
pub(super) fn read(transport: &mut Transport) -> netlink::Result<BTreeSet<IpAddr>> {
    let mut found = BTreeSet::new();
    transport.dump(
        RTM_GETNEIGH,
        "reading the far ends of tunnels",
        |writer| writer.header(&[AF_BRIDGE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        BTreeSet::clear,
        &mut found,
        |found, message| read_entry(message.payload, found),
    )?;
    Ok(found)
}

/// Adds the far end of an entry; those of bridges have none.
fn read_entry(payload: &[u8], found: &mut BTreeSet<IpAddr>) -> netlink::Result<()> {
    let (_, contents) = split::<12>(payload)?;
    for attribute in attributes(contents) {
        let attribute = attribute?;
        if attribute.kind == NDA_DST {
            let family = match attribute.value.len() {
                4 => AF_INET,
                _ => AF_INET6,
            };
            let far_end = read_address(&attribute, family)?;
            found.extend(far_end.filter(|it| !it.is_unspecified() && !it.is_multicast()));
        }
    }
    Ok(())
}
