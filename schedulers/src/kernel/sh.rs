//! Source hashing.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::hash::{fold, hash32};
use crate::kernel::is_eligible;
use crate::options::{Flags, Options};
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `sh`: the same server for the same client, as long as servers and weights do not change.
///
/// *Formula*: a table of 2<sup>b</sup> slots (b = 8 unless the kernel is configured otherwise) is filled
/// with the servers in list order, repeatedly. A server takes as many adjacent slots as its weight, and
/// one slot if its weight is 0. The client's address is folded to 32 bits, its port is added with
/// [`Flags::port`], and the sum is multiplied by 0x61c88647; the upper b bits of the product select the
/// slot. If its server is not eligible, the connection is refused; with [`Flags::fallback`], slots are
/// tried from *twice* the hash on, not from the next slot.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_sh.c`, `ip_vs_sh_schedule`, `ip_vs_sh_get_fallback`,
/// `ip_vs_sh_reassign`; Linux 6.1.192, the same in 7.2. Kernels before 4.18 use the lower bits of the
/// product.
///
/// *Complexity*: constant per pick; every change of the servers fills the table again. Memory: the
/// table only.
///
/// *When to use*: sessions kept in the servers' memory, if servers rarely change. This is not consistent
/// hashing: a change moves most clients. If the weights add up to more than the number of slots, the
/// oldest servers, at the end of the list, get no connections.
#[derive(Clone, Debug)]
pub struct Sh {
    flags: Flags,
    bits: u32,
    table: Vec<Option<ServerId>>,
}

impl Sh {
    /// Creates a scheduler with the flags and the table size of `options`.
    pub fn new(options: &Options) -> Self {
        Self {
            flags: options.flags,
            bits: options.sh_table.bits(),
            table: vec![None; options.sh_table.slots()],
        }
    }

    fn fill(&mut self, servers: &Servers) {
        self.table.fill(None);
        let mut slots = self.table.iter_mut();
        for (id, server) in servers.iter().cycle() {
            // `ip_vs_sh_reassign` gives a server of weight 0 a slot, too: its clients are refused.
            let share = server.weight().max(1) as usize;
            let given = slots.by_ref().take(share);
            if given.map(|slot| *slot = Some(id)).count() < share {
                break;
            }
        }
    }

    fn slot(&self, slot: usize) -> Option<ServerId> {
        self.table[slot & (self.table.len() - 1)]
    }
}

impl Scheduler for Sh {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        let port = if self.flags.port {
            request.source_port
        } else {
            0
        };
        let client = fold(servers.family(), request.source);
        let hash = hash32(client.wrapping_add(port.into()), self.bits);
        let first = self.slot(hash)?;
        if is_eligible(servers, first) {
            return Some(first);
        }
        if !self.flags.fallback {
            return None;
        }
        // Twice the hash: `ip_vs_sh_get_fallback` starts with the hash as the offset, and
        // `ip_vs_sh_hashkey` adds the hash to the offset again.
        (0..self.table.len())
            .map_while(|offset| self.slot(2 * hash + offset))
            .find(|&id| is_eligible(servers, id))
    }

    fn bound(&mut self, servers: &Servers, _: Duration) -> Result<(), Error> {
        self.fill(servers);
        Ok(())
    }

    fn changed(&mut self, servers: &Servers) {
        self.fill(servers);
    }
}
