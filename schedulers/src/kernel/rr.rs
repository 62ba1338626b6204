//! Round robin.

use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::{Iter, Servers};

/// `rr`: the servers in turn, in list order, whatever their weights.
///
/// *Formula*: the next eligible server after the last pick, in a cycle.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_rr.c`, `ip_vs_rr_schedule`, `ip_vs_rr_del_dest`; Linux 6.1.192,
/// the same in 7.2.
///
/// *Complexity*: one step per pick, and one per server that is skipped.
///
/// *When to use*: equal servers, connections that cost about the same.
///
/// A new server is the first of the list, so it is picked after the end of the list is reached. After the
/// last picked server is removed, the one that followed it is next.
#[derive(Clone, Debug, Default)]
pub struct Rr {
    /// The last pick; `None` before the first server of the list.
    position: Option<ServerId>,
}

impl Scheduler for Rr {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        // The second search also reads the servers after the last pick again. The first search rejected
        // them, so the result is that of the kernel's cycle, which ends at the last pick.
        let picked = first_eligible(servers.after(self.position))
            .or_else(|| first_eligible(servers.iter()))?;
        self.position = Some(picked);
        Some(picked)
    }

    fn removed(&mut self, _: &Servers, server: ServerId, predecessor: Option<ServerId>) {
        if self.position == Some(server) {
            self.position = predecessor;
        }
    }
}

fn first_eligible(mut servers: Iter<'_>) -> Option<ServerId> {
    let (id, _) = servers.find(|(_, server)| server.is_eligible())?;
    Some(id)
}
