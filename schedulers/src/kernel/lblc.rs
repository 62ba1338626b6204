//! Locality-based least connections.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::cache::Cache;
use crate::kernel::locality::{Remembered, is_overrun, least_loaded};
use crate::options::Options;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;

/// `lblc`: the same server for the same frontend address until it is overrun, then as
/// [`Wlc`](super::Wlc).
///
/// *Formula*: the last server of the frontend address, if it is listed, has a weight above 0, and is not
/// overrun. Otherwise wlc's choice, which is remembered for the address. A server is overrun if it has
/// more active connections than its weight while some server has fewer than half of its own weight.
/// A remembered server gets connections even if it is marked overloaded.
///
/// *Memory of addresses*: an address unused for [`Options::lblc_expiration`] is forgotten; a timer checks
/// every half hour. Above 16384 addresses, those unused for six minutes are forgotten every minute. Since
/// 6.1.191 no more than 24576 are remembered ([`Options::locality_limit`]).
///
/// *Source*: `net/netfilter/ipvs/ip_vs_lblc.c`, `ip_vs_lblc_schedule`, `__ip_vs_lblc_schedule`,
/// `is_overloaded`, `ip_vs_lblc_check_expire`; Linux 6.1.192; 7.2 picks the same.
///
/// *Complexity*: constant per pick while the remembered server is used; otherwise reads every server.
/// Memory: about 70 bytes per address.
///
/// *When to use*: a firewall-mark virtual server for many addresses, in front of caches. A virtual server
/// with one address uses one server until that is overrun.
#[derive(Clone, Debug)]
pub struct Lblc {
    cache: Cache<Remembered>,
}

impl Lblc {
    /// Creates a scheduler with the expiration and the limit of `options`.
    pub fn new(options: &Options) -> Self {
        Self {
            cache: Cache::new(options.lblc_expiration, options.locality_limit),
        }
    }
}

impl Scheduler for Lblc {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        let (family, frontend, now) = (servers.family(), request.destination, request.at);
        self.cache.collect(now);
        let mut remembered = self.cache.get(family, frontend, now);
        let last = remembered.as_mut().and_then(|last| last.find(servers));
        if let Some((id, server)) = last
            && server.listed
            && server.weight > 0
            && !is_overrun(server, servers)
        {
            return Some(id);
        }
        let (id, server) = least_loaded(servers)?;
        if !remembered.is_some_and(|last| last.is(server)) {
            let value = Remembered::new(id, server);
            self.cache.replace(family, frontend, now, value);
        }
        Some(id)
    }

    fn bound(&mut self, _: &Servers, at: Duration) -> Result<(), Error> {
        self.cache.start(at);
        Ok(())
    }
}
