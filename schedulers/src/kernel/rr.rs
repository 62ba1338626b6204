//! Round robin.

use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::{Iter, Servers};

/// `rr`: the servers in turn, in list order, whatever their weights.
///
/// *Formula*: the first eligible server after the one picked last, going round.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_rr.c`, `ip_vs_rr_schedule`, `ip_vs_rr_del_dest`; Linux 6.1.192,
/// the same in 7.2.
///
/// *Complexity*: one step per pick, and one per server that is passed over.
///
/// *When to use*: equal servers, connections that cost about the same.
///
/// A server added later is the first of the list, so its turn comes when the walk goes round. After
/// the removal of the server picked last, the one that followed it is next.
#[derive(Clone, Debug, Default)]
pub struct Rr {
    /// The server picked last; `None` before the first of the list.
    position: Option<ServerId>,
}

impl Scheduler for Rr {
    fn pick(&mut self, servers: &Servers, _: &Request) -> Option<ServerId> {
        // Going round would end with the position itself; asking those behind it again finds nobody.
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
