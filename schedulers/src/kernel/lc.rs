//! Least connections.

use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `lc`: the server with the fewest connections, of which an active one counts 256 times.
///
/// *Formula*: the least [overhead](crate::Server::overhead), compared as an unsigned number, of the
/// eligible servers; the first server wins a tie. Weights above 0 do not matter.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_lc.c`, `ip_vs_lc_schedule`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: reads every server at every pick. [`Implementation::Indexed`](crate::Implementation)
/// keeps the winner; a change of a server costs O(log n).
///
/// *When to use*: equal servers, connections of very different length, and a single balancer, which
/// sees all connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lc;

impl Scheduler for Lc {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let flavour = servers.flavour();
        servers
            .iter()
            .filter(|(_, server)| server.is_eligible())
            // `min_by_key` returns the first of equal elements: the newest server, as in the kernel.
            .min_by_key(|(_, server)| server.overhead(flavour).cast_unsigned())
            .map(|(id, _)| id)
    }
}
