//! The next hops of routes: addresses that other machines have.
//!
//! Layouts and numbers from `include/uapi/linux/rtnetlink.h`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netlink::attr::attributes;
use netlink::transport::Transport;
use rustix::io::Errno;

use super::rtnetlink::{AF_INET, AF_INET6, RTM_GETROUTE, RTN_UNICAST, read_address, split};

/// The table of the routes to other nodes and beyond. Other tables may have 100,000 routes.
const RT_TABLE_MAIN: u8 = 254;

const RTA_GATEWAY: u16 = 5;
/// A list of next hops.
const RTA_MULTIPATH: u16 = 9;
/// A next hop of another family than the route's.
const RTA_VIA: u16 = 18;

/// The length of `struct rtnexthop`, which is before the attributes of each next hop of a list.
const NEXT_HOP_HEADER: usize = 8;

/// Reads the next hops of the unicast routes of both families.
///
/// # Cost
/// Linear in these routes; about a millisecond for 2,000. Memory is linear in the different next hops.
pub(super) fn read(transport: &mut Transport) -> netlink::Result<BTreeSet<IpAddr>> {
    let mut all = BTreeSet::new();
    for family in [AF_INET, AF_INET6] {
        let mut found = BTreeSet::new();
        let read = transport.dump(
            RTM_GETROUTE,
            "reading the next hops of routes",
            |writer| {
                writer.header(&[
                    family,
                    0,
                    0,
                    0,
                    RT_TABLE_MAIN,
                    0,
                    0,
                    RTN_UNICAST,
                    0,
                    0,
                    0,
                    0,
                ]);
            },
            BTreeSet::clear,
            &mut found,
            |found, message| read_route(message.payload, found),
        );
        match read {
            // A network namespace without any address has no such table.
            Err(error) if error.errno() == Some(Errno::NOENT) => continue,
            other => other?,
        };
        all.append(&mut found);
    }
    Ok(all)
}

/// Adds the next hops of a route.
fn read_route(payload: &[u8], found: &mut BTreeSet<IpAddr>) -> netlink::Result<()> {
    let ([family, _, _, _, table, _, _, kind, ..], contents) = split::<12>(payload)?;
    // Kernels before 4.20 do not filter.
    match (table, kind) {
        (RT_TABLE_MAIN, RTN_UNICAST) => read_next_hops(family, contents, found),
        _ => Ok(()),
    }
}

fn read_next_hops(
    family: u8,
    contents: &[u8],
    found: &mut BTreeSet<IpAddr>,
) -> netlink::Result<()> {
    for attribute in attributes(contents) {
        let attribute = attribute?;
        match attribute.kind {
            RTA_GATEWAY => found.extend(read_address(&attribute, family)?),
            RTA_VIA => found.extend(read_via(attribute.value)),
            RTA_MULTIPATH => {
                let mut list = attribute.value;
                while let Some(([a, b, ..], _)) = list.split_first_chunk::<NEXT_HOP_HEADER>() {
                    // As RTNH_NEXT does: the length of each is a multiple of 4, and includes the header.
                    let length = usize::from(u16::from_ne_bytes([*a, *b]));
                    let Some(attributes) = list.get(NEXT_HOP_HEADER..length) else {
                        break;
                    };
                    read_next_hops(family, attributes, found)?;
                    list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Parses `struct rtvia`: a family and an address.
fn read_via(value: &[u8]) -> Option<IpAddr> {
    let (family, address) = value.split_first_chunk::<2>()?;
    match u8::try_from(u16::from_ne_bytes(*family)) {
        Ok(AF_INET) => Some(IpAddr::from(<[u8; 4]>::try_from(address).ok()?)),
        Ok(AF_INET6) => Some(IpAddr::from(<[u8; 16]>::try_from(address).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn next_hop(attributes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(NEXT_HOP_HEADER + attributes.len()).unwrap();
        [&length.to_ne_bytes()[..], &[0; 6], attributes].concat()
    }

    fn route(table: u8, kind: u8, attributes: &[u8]) -> Vec<u8> {
        let header = [AF_INET, 24, 0, 0, table, 0, 0, kind, 0, 0, 0, 0];
        [&header, attributes].concat()
    }

    #[test]
    fn reads_each_form_of_a_next_hop() {
        let one = attribute(RTA_GATEWAY, &[10, 0, 0, 1]);
        let via = |family: u8, address: &[u8]| {
            attribute(
                RTA_VIA,
                &[&u16::from(family).to_ne_bytes()[..], address].concat(),
            )
        };
        let v6 = [0xfd; 16];
        let list = [
            next_hop(&attribute(RTA_GATEWAY, &[10, 0, 0, 2])),
            next_hop(&[]),
            next_hop(&via(AF_INET6, &v6)),
        ]
        .concat();
        let list = attribute(RTA_MULTIPATH, &list);
        let check = |payload: &[u8], expected: &[&str]| {
            let mut found = BTreeSet::new();
            read_route(payload, &mut found).unwrap();
            let expected = expected.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(found, expected);
        };
        let ipv6 = "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd";
        check(&route(254, 1, &one), &["10.0.0.1"]);
        check(&route(254, 1, &list), &["10.0.0.2", ipv6]);
        check(&route(254, 1, &via(AF_INET, &[10, 0, 0, 3])), &["10.0.0.3"]);
        check(&route(254, 1, &via(AF_INET6, &[1, 2])), &[]);
        check(&route(255, 1, &one), &[]);
        check(&route(254, 2, &one), &[]);
    }

    #[test]
    fn a_list_with_wrong_lengths_ends() {
        for length in [0_u16, 3, 7, 9, u16::MAX] {
            let list = [&length.to_ne_bytes()[..], &[0; 6]].concat();
            let payload = route(254, 1, &attribute(RTA_MULTIPATH, &list));
            let mut found = BTreeSet::new();
            let _ = read_route(&payload, &mut found);
            assert_eq!(found, BTreeSet::new());
        }
    }
}
