//! The code that lblc and lblcr share besides the cache.

use crate::kernel::weighted::least_per_weight;
use crate::server::{Endpoint, Server, ServerId};
use crate::servers::Servers;

/// A reference to a server that stays valid when the server is removed and added again.
///
/// The kernel keeps a removed destination in its trash as long as an entry of lblc or lblcr refers to it,
/// and reuses it when the same address and port is added again.
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

    /// Returns the server, listed or not. `None` if it is not listed and has no connections.
    pub(super) fn find<'a>(&mut self, servers: &'a Servers) -> Option<(ServerId, &'a Server)> {
        if servers.get(self.id).is_none() {
            // A server that was forgotten and added again has a new id.
            self.id = servers.remembered(self.endpoint)?;
        }
        Some((self.id, servers.get(self.id)?))
    }

    pub(super) fn is(&self, server: &Server) -> bool {
        self.endpoint == server.endpoint
    }
}

/// Returns the server that wlc would pick, for an address without a usable entry.
pub(super) fn least_loaded(servers: &Servers) -> Option<(ServerId, &Server)> {
    let flavour = servers.flavour();
    let id = least_per_weight(servers, |server| server.overhead(flavour))?;
    Some((id, servers.get(id)?))
}

/// Returns whether `server` has more active connections than its weight while another server has
/// fewer than half of its own.
///
/// Kernel: `is_overloaded` in `ip_vs_lblc.c` and `ip_vs_lblcr.c`. Despite its name it does not read the
/// overload mark.
pub(super) fn is_overrun(server: &Server, servers: &Servers) -> bool {
    let active = |server: &Server| server.active.cast_signed();
    active(server) > server.weight
        && servers
            .iter()
            .any(|(_, other)| active(other).wrapping_mul(2) < other.weight)
}
