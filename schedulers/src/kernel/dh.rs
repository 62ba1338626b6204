//! Destination hashing.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::hash::{fold, hash32};
use crate::kernel::is_eligible;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `dh`: the same server for the same frontend address.
///
/// *Formula*: a table of 256 slots is filled with the servers in list order, one slot each, repeatedly;
/// weights do not matter. The frontend address is folded to 32 bits and multiplied by 0x61c88647; the
/// upper 8 bits of the product select the slot. If its server is not eligible, the connection is refused.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_dh.c`, `ip_vs_dh_schedule`, `ip_vs_dh_reassign`; Linux 6.1.192,
/// the same in 7.2. Kernels before 4.18 use the lower bits of the product.
///
/// *Complexity*: constant per pick; every change of the servers fills the table again. Memory: the
/// table only.
///
/// *When to use*: a firewall-mark virtual server for many addresses, in front of caches. A virtual server
/// with one address sends all clients to one server.
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
        let frontend = fold(servers.family(), request.destination);
        self.table[hash32(frontend, Self::BITS)].filter(|&id| is_eligible(servers, id))
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.fill(servers);
        Ok(())
    }

    fn changed(&mut self, servers: &Servers) {
        self.fill(servers);
    }
}
