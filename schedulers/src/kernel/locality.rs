//! What lblc and lblcr have in common besides the cache.

use crate::kernel::weighted::least_per_weight;
use crate::server::{Endpoint, Server, ServerId};
use crate::servers::Servers;

/// A server that is remembered: it stays the same when it is removed and added again, since the kernel
/// keeps a removed destination as long as somebody remembers it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    id: ServerId,
    endpoint: Endpoint,
}

impl Remembered {
    pub(super) fn new(id: ServerId, server: &Server) -> Self {
        Self {
            id,
            endpoint: server.endpoint,
        }
    }

    /// The server as it is now, listed or not; nothing if it is not listed and has no connections.
    pub(super) fn find<'a>(&mut self, servers: &'a Servers) -> Option<(ServerId, &'a Server)> {
        if servers.get(self.id).is_none() {
            self.id = servers.remembered(self.endpoint)?;
        }
        Some((self.id, servers.get(self.id)?))
    }

    pub(super) fn is(&self, server: &Server) -> bool {
        self.endpoint == server.endpoint
    }
}

/// The server for an address of which nothing is remembered, or nothing useful.
pub(super) fn least_loaded(servers: &Servers) -> Option<(ServerId, &Server)> {
    let flavour = servers.flavour();
    let id = least_per_weight(servers, |server| server.overhead(flavour))?;
    Some((id, servers.get(id)?))
}

/// Whether it has more active connections than its weight while another server has fewer than half
/// of its own weight.
///
/// Kernel: `is_overloaded` in `ip_vs_lblc.c` and `ip_vs_lblcr.c`. The overload mark has no part in it.
pub(super) fn is_overrun(server: &Server, servers: &Servers) -> bool {
    let active = |server: &Server| server.active.cast_signed();
    active(server) > server.weight
        && servers
            .iter()
            .any(|(_, other)| active(other).wrapping_mul(2) < other.weight)
}
