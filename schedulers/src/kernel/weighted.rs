//! The scan that wlc, sed, lblc and lblcr share.

use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// Returns the server with the least cost per weight; the first server wins a tie.
///
/// Costs are multiplied crosswise, as signed 64-bit products, like in the kernel. The scan starts with the
/// first eligible server. Among the later ones the kernel does not skip weight 0; such a server wins if
/// its cost has overflowed to a negative number.
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
