//! Never queue.

use crate::kernel::sed::expected;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `nq`: an idle server, otherwise as [`Sed`](super::Sed).
///
/// *Formula*: the first eligible server without active connections. If there is none, the least (active
/// connections + 1) / weight of the eligible servers; the first server wins a tie. Inactive connections
/// do not count.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_nq.c`, `ip_vs_nq_schedule`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: reads every server at every pick, up to the first idle one.
/// [`Implementation::Indexed`](crate::Implementation) keeps the winner; a change of a server costs
/// O(log n).
///
/// *When to use*: as sed, if no connection may wait while a server is idle. Not for UDP: the kernel counts
/// no active UDP connections, so every server is always idle and the newest gets all connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nq;

impl Scheduler for Nq {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let mut walk = servers.iter().filter(|(_, server)| server.is_eligible());
        let (mut id, mut best) = walk.next()?;
        let mut least = i64::from(expected(best));
        // `ip_vs_nq_schedule` returns the first idle server without comparing weights.
        if best.active == 0 {
            return Some(id);
        }
        for (other, server) in walk {
            if server.active == 0 {
                return Some(other);
            }
            let costs = i64::from(expected(server));
            if least * i64::from(server.weight) > costs * i64::from(best.weight) {
                (id, best, least) = (other, server, costs);
            }
        }
        Some(id)
    }
}
