//! The order in which destinations are added after the kernel removed many.
//!
//! The kernel keeps removed destinations in the namespace's trash for two to three minutes. Each added
//! destination searches the trash from the newest entry, and takes the entry of the same destination out
//! (`ip_vs_trash_get_dest`). After a flush of 100,000, an addition searches 50,000 entries on average;
//! if the destination that was removed last comes first, it searches one.
//!
//! A flush removes the virtual servers in the order in which the kernel lists them. So the order is learnt
//! while nothing differs. It cannot be read later: Linux 7.2 gives the table a new order after a flush.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;

use ipvs_netlink::ServiceKey;

use crate::dataplane::ipvs::op::Op;

/// The fewest additions that are reordered. In fewer, a search costs less than the reordering.
pub(super) const MANY: usize = 1_000;

/// The order in which a flush would remove the virtual servers, as last learnt.
///
/// Only speed depends on it, so it may be outdated.
#[derive(Debug, Default)]
pub(super) struct RemovalOrder {
    /// A hash of each key: a sixth of the memory of the keys.
    keys: Vec<u32>,
}

/// Virtual servers in the order in which the kernel lists them: a hash of each key.
#[derive(Debug, Default)]
pub(super) struct ServerOrder(Vec<u32>);

impl ServerOrder {
    pub(super) fn push(&mut self, key: &ServiceKey) {
        self.0.push(hash(key));
    }
}

impl RemovalOrder {
    /// Returns whether an order was learnt.
    pub(super) fn is_known(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Learns from a read of all virtual servers.
    ///
    /// A read after a flush, or while one is under way, shows fewer virtual servers and teaches nothing.
    pub(super) fn learn_from_read(&mut self, read: ServerOrder) {
        if read.0.len() >= self.keys.len() {
            self.keys = read.0;
        }
    }

    /// Returns the positions of `ops`, all additions sorted by virtual server, in the order to apply them.
    pub(super) fn newest_first(&self, ops: &[Op]) -> Vec<usize> {
        let places: HashMap<u32, usize> = self.keys.iter().copied().zip(0..).collect();
        let mut end = 0;
        let of_servers = ops.chunk_by(|one, next| one.service_key() == next.service_key());
        let mut of_servers: Vec<(Option<usize>, Range<usize>)> = of_servers
            .map(|ops| {
                let start = end;
                end += ops.len();
                let key = ops.first().and_then(Op::service_key);
                let place = key.and_then(|key| places.get(&hash(&key)).copied());
                (place, start..end)
            })
            .collect();
        // A virtual server without a place is new, so the trash has none of its destinations: it
        // comes last.
        of_servers.sort_by_key(|&(place, _)| Reverse(place));
        of_servers.into_iter().flat_map(|(_, ops)| ops).collect()
    }
}

fn hash(key: &ServiceKey) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    // Any 32 bits of the hash do.
    u32::try_from(hasher.finish() >> 32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ipvs_netlink as ipvs;

    use super::*;

    fn server(number: u8) -> ServiceKey {
        ServiceKey::Address {
            protocol: ipvs::Protocol::Tcp,
            address: [10, 96, 0, number].into(),
            port: 80,
        }
    }

    fn addition(to: u8, endpoint: u8) -> Op {
        let address: std::net::SocketAddr = ([10, 128, 0, endpoint], 8080).into();
        let destination = ipvs::Destination::new(address.into(), 1);
        Op::AddDestination(server(to), destination)
    }

    #[test]
    fn a_read_during_a_flush_does_not_replace_the_order() {
        let read = |numbers: &[u8]| {
            ServerOrder(
                numbers
                    .iter()
                    .map(|&number| hash(&server(number)))
                    .collect(),
            )
        };
        let mut order = RemovalOrder::default();
        order.learn_from_read(read(&[1, 2, 3]));
        order.learn_from_read(read(&[1, 2]));
        let ops = [1, 2, 3].map(|number| addition(number, 1));
        assert_eq!(order.newest_first(&ops), [2, 1, 0]);
        order.learn_from_read(read(&[3, 2, 1]));
        assert_eq!(order.newest_first(&ops), [0, 1, 2]);
    }

    #[test]
    fn the_virtual_server_that_is_listed_last_comes_first() {
        let order = RemovalOrder {
            keys: [3, 1, 2].map(|number| hash(&server(number))).to_vec(),
        };
        let ops = [
            addition(1, 1),
            addition(1, 2),
            addition(2, 3),
            addition(3, 4),
            // Not listed: it is new, or another program has removed it meanwhile.
            addition(4, 5),
        ];
        assert_eq!(order.newest_first(&ops), [2, 0, 1, 3, 4]);
        let unknown = RemovalOrder::default();
        assert_eq!(unknown.newest_first(&ops), [0, 1, 2, 3, 4]);
    }
}
