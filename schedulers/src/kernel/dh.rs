//! Destination hashing.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::hash::{fold, hash32};
use crate::kernel::is_eligible;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `dh`: the same server for the same dialled address.
///
/// *Formula*: a table of 256 slots is filled with the servers in list order, one slot each, again and
/// again, whatever their weights. The dialled address, folded to 32 bits, times 0x61c88647, keeps its
/// upper 8 bits: the slot. A server there that is not eligible refuses the connection.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_dh.c`, `ip_vs_dh_schedule`, `ip_vs_dh_reassign`; Linux 6.1.192,
/// the same in 7.2. Before 4.18 the lower bits of the product were kept.
///
/// *Complexity*: constant per pick; the table is filled again at every change of the servers. Memory
/// is the table's, however many servers there are.
///
/// *When to use*: a firewall-mark virtual server that stands for many addresses, in front of caches. A
/// virtual server with one address sends all its clients to one server.
#[derive(Clone, Debug)]
pub struct Dh {
    table: Box<[Option<ServerId>; 1 << Self::BITS]>,
}

impl Dh {
    const BITS: u32 = 8;

    fn fill(&mut self, servers: &Servers) {
        self.table.fill(None);
        for (slot, (id, _)) in self.table.iter_mut().zip(servers.iter().cycle()) {
            *slot = Some(id);
        }
    }
}

impl Default for Dh {
    fn default() -> Self {
        Self {
            table: Box::new([None; 1 << Self::BITS]),
        }
    }
}

impl Scheduler for Dh {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        let dialled = fold(servers.family(), request.destination);
        self.table[hash32(dialled, Self::BITS)].filter(|&id| is_eligible(servers, id))
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.fill(servers);
        Ok(())
    }

    fn added(&mut self, servers: &Servers, _: ServerId) {
        self.fill(servers);
    }

    fn removed(&mut self, servers: &Servers, _: ServerId, _: Option<ServerId>) {
        self.fill(servers);
    }

    fn updated(&mut self, servers: &Servers, _: ServerId) {
        self.fill(servers);
    }
}
