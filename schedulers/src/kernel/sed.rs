//! Shortest expected delay.

use crate::kernel::weighted::least_per_weight;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// `sed`: the server with the fewest active connections per weight, the new one included.
///
/// *Formula*: the least (active connections + 1) / weight of the eligible servers; the first server wins
/// a tie. Inactive connections do not count.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_sed.c`, `ip_vs_sed_schedule`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: reads every server at every pick. [`Implementation::Indexed`](crate::Implementation)
/// keeps the winner; a change of a server costs O(log n).
///
/// *When to use*: very unequal servers with few connections, if the strongest one is the fastest even when
/// it is busy. Not for UDP: the kernel counts no active UDP connections, so the first of the heaviest
/// servers gets all connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sed;

impl Scheduler for Sed {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        least_per_weight(servers, expected)
    }
}

/// Returns the active connections including the new one, in signed 32 bits that wrap.
///
/// Kernel: `ip_vs_sed_dest_overhead`, `ip_vs_nq_dest_overhead`.
pub(super) fn expected(server: &Server) -> i32 {
    server.active.wrapping_add(1).cast_signed()
}
