//! Weighted overflow.

use crate::kernel::first_heaviest;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// `ovf`: the heaviest server until it is full, then the next one.
///
/// *Formula*: the greatest weight of the eligible servers whose active connections do not *exceed* their
/// weight; the first server wins a tie. A server of weight 3 takes 4 connections. If all servers are
/// full, the connection is refused. Inactive connections do not count.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_ovf.c`, `ip_vs_ovf_schedule`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: reads every server at every pick.
///
/// *When to use*: servers to be filled one after the other, so that the rest can be switched off. Not for
/// UDP: the kernel counts no active UDP connections, so no server ever fills up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ovf;

impl Scheduler for Ovf {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        // `<=`, as in `ip_vs_ovf_schedule`: a server takes one connection more than its weight.
        let has_room = |server: &Server| server.active.cast_signed() <= server.weight;
        first_heaviest(
            servers
                .iter()
                .filter(|(_, server)| server.is_eligible() && has_room(server)),
        )
    }
}
