//! Weighted least connections.

use crate::kernel::weighted::least_per_weight;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `wlc`: the server with the fewest connections per weight, of which an active one counts 256 times.
///
/// *Formula*: the least [overhead](crate::Server::overhead) / weight of the eligible servers; the first
/// server wins a tie. The overhead is signed: from 2<sup>23</sup> active connections on it is negative,
/// and the server wins.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_wlc.c`, `ip_vs_wlc_schedule`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: reads every server at every pick. [`Implementation::Indexed`](crate::Implementation)
/// keeps the winner; a change of a server costs O(log n).
///
/// *When to use*: unequal servers, connections of very different length, and a single balancer, which
/// sees all connections. ipvsadm's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wlc;

impl Scheduler for Wlc {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        let flavour = servers.flavour();
        least_per_weight(servers, |server| server.overhead(flavour))
    }
}
