//! The scan that wlc, sed, lblc and lblcr share.

use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// The server with the least cost per weight; of equal ones, the first of the list.
///
/// Costs are compared crosswise, as signed products of 64 bits. The scan begins with the first
/// eligible server; among the later ones, the kernel does not exclude weight 0, which wins when its
/// cost has overflowed to a negative number.
pub(super) fn least_per_weight(
    servers: &Servers,
    cost: impl Fn(&Server) -> i32,
) -> Option<ServerId> {
    let mut walk = servers.iter();
    let (mut id, mut best) = walk.find(|(_, server)| server.is_eligible())?;
    let mut least = i64::from(cost(best));
    for (other, server) in walk.filter(|(_, server)| !server.overloaded) {
        let costs = i64::from(cost(server));
        if least * i64::from(server.weight) > costs * i64::from(best.weight) {
            (id, best, least) = (other, server, costs);
        }
    }
    Some(id)
}
