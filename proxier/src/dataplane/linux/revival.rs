//! The order in which destinations are added after the kernel removed many.
//!
//! The kernel keeps removed destinations in the namespace's trash for two to three minutes. Each added
//! destination searches the trash from the newest entry, and takes the entry of the same destination out
//! (`ip_vs_trash_get_dest`). After a flush of 100,000, an addition searches 50,000 entries on average.
//!
//! A flush removes the virtual servers in the order in which `/proc/net/ip_vs` lists them. Virtual
//! servers that were added again are listed in the same order, because their places in the kernel's hash
//! table are the same. So in the reverse of that order, each addition finds its entry near the beginning.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;

use ipvs_netlink::ServiceKey;
use ipvs_netlink::listing;

use crate::op::Op;

/// The fewest additions that are reordered. Fewer search a trash that is longer for other reasons only.
pub(super) const MANY: usize = 1_000;

/// Returns the positions of `ops`, all additions sorted by virtual server, in the order to apply them.
pub(super) fn order(ops: &[Op]) -> Vec<usize> {
    let places = File::open(listing::PATH).and_then(places);
    let places = places.unwrap_or_else(|error| {
        // Only speed depends on the order.
        tracing::debug!("{}: {error}; adding in order of keys", listing::PATH);
        HashMap::new()
    });
    newest_first(ops, &places)
}

/// Returns positions of `ops`: those of the virtual server with the last place come first.
fn newest_first(ops: &[Op], places: &HashMap<ServiceKey, u32>) -> Vec<usize> {
    let mut end = 0;
    let of_servers = ops.chunk_by(|one, next| one.service_key() == next.service_key());
    let mut of_servers: Vec<(Option<u32>, Range<usize>)> = of_servers
        .map(|ops| {
            let start = end;
            end += ops.len();
            let key = ops.first().and_then(Op::service_key);
            (key.and_then(|key| places.get(&key).copied()), start..end)
        })
        .collect();
    of_servers.sort_by_key(|&(place, _)| Reverse(place));
    of_servers.into_iter().flat_map(|(_, ops)| ops).collect()
}

/// Returns the position of each virtual server that `source` lists.
fn places(source: impl io::Read) -> io::Result<HashMap<ServiceKey, u32>> {
    let mut places = HashMap::new();
    let mut place = 0;
    listing::walk(source, |service, _| {
        // The list does not tell the families of a firewall mark apart.
        places.extend(service.key.candidates().map(|key| (key, place)));
        place += 1;
        true
    })?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addition(server: u8, endpoint: u8) -> Op {
        let server = ServiceKey::Address {
            protocol: ipvs_netlink::Protocol::Tcp,
            address: [10, 96, 0, server].into(),
            port: 80,
        };
        let address: std::net::SocketAddr = ([10, 128, 0, endpoint], 8080).into();
        let destination = ipvs_netlink::Destination::new(address.into(), 1);
        Op::AddDestination(server, destination)
    }

    #[test]
    fn the_virtual_server_that_is_listed_last_comes_first() {
        let listing = "IP Virtual Server version 1.2.1 (size=4096)\n\
                       TCP  0A600003:0050 rr  \n\
                       TCP  0A600001:0050 rr  \n\
                       TCP  0A600002:0050 rr  \n";
        let ops = [
            addition(1, 1),
            addition(1, 2),
            addition(2, 3),
            addition(3, 4),
            // Not listed: another program has removed it meanwhile.
            addition(4, 5),
        ];
        let places = places(listing.as_bytes()).unwrap();
        assert_eq!(newest_first(&ops, &places), [2, 0, 1, 3, 4]);
        assert_eq!(newest_first(&ops, &HashMap::new()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_listing_that_ends_in_a_line_is_an_error() {
        assert!(places("TCP  0A6".as_bytes()).is_err());
    }
}
