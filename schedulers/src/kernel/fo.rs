//! Weighted fail-over.

use crate::kernel::first_heaviest;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `fo`: the heaviest eligible server.
///
/// *Formula*: the greatest weight of the eligible servers; the first of the list on a tie.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_fo.c`, `ip_vs_fo_schedule`; Linux 6.1.192, the same in 7.2.
///
/// *Complexity*: reads every server at every pick.
///
/// *When to use*: a main server and its stand-ins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fo;

impl Scheduler for Fo {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        first_heaviest(servers.iter().filter(|(_, server)| server.is_eligible()))
    }
}
