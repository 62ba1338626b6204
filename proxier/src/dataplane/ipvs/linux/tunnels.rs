//! The far ends of tunnels: addresses that other machines have.
//!
//! In a network of VXLAN no route leads over the addresses of other nodes: flannel and Calico write them into the forwarding
//! databases of their devices. A device may also learn an entry, from any packet of VXLAN that reaches it, with whatever sender
//! that names: such entries say nothing about machines. Layouts and numbers from `include/uapi/linux/neighbour.h`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::attr::attributes;
use netlink::transport::Transport;

use super::rtnetlink::{AF_INET, AF_INET6, read_address, split};

const AF_BRIDGE: u8 = 7;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;

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

/// Adds the far end of an entry that a program wrote; those of bridges have none.
fn read_entry(payload: &[u8], found: &mut BTreeSet<IpAddr>) -> netlink::Result<()> {
    let ([.., low, high, _, _], contents) = split::<12>(payload)?;
    if u16::from_ne_bytes([low, high]) & (NUD_NOARP | NUD_PERMANENT) == 0 {
        return Ok(());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an entry of this state with the far end 192.0.2.`host`.
    fn entry(state: u16, host: u8) -> Vec<u8> {
        let mut entry = vec![AF_BRIDGE, 0, 0, 0, 7, 0, 0, 0];
        entry.extend(state.to_ne_bytes());
        entry.extend([0, 0]);
        entry.extend(8_u16.to_ne_bytes());
        entry.extend(NDA_DST.to_ne_bytes());
        entry.extend([192, 0, 2, host]);
        entry
    }

    #[test]
    fn a_learnt_entry_names_no_machine() {
        const NUD_REACHABLE: u16 = 0x02;
        const NUD_STALE: u16 = 0x04;
        let mut found = BTreeSet::new();
        for (state, host) in [
            (NUD_REACHABLE, 1),
            (NUD_STALE, 2),
            (NUD_NOARP, 3),
            (NUD_PERMANENT, 4),
            // The entry of a device with one far end, its option `remote`.
            (NUD_REACHABLE | NUD_PERMANENT, 5),
        ] {
            read_entry(&entry(state, host), &mut found).unwrap();
        }
        let expected = [3, 4, 5].map(|host| IpAddr::from([192, 0, 2, host]));
        assert_eq!(found, BTreeSet::from(expected));
    }
}
