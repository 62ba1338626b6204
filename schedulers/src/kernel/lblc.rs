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

/// `lblc`: the same server for the same dialled address while it can keep up, otherwise as
/// [`Wlc`](super::Wlc).
///
/// *Formula*: the server that the dialled address had last, if it is in the set, has a weight above 0,
/// and either has at most as many active connections as its weight or no server has fewer than half of
/// its weight. Else wlc's choice, which is remembered. A remembered server gets connections even when
/// it is marked overloaded.
///
/// *Memory of addresses*: one that nobody dials is forgotten after [`Options::lblc_expiration`], looked
/// at every half hour; when there are more than 16384, those unused for six minutes are forgotten each
/// minute; more than 24576 are not remembered, since 6.1.191 ([`Options::locality_limit`]).
///
/// *Source*: `net/netfilter/ipvs/ip_vs_lblc.c`, `ip_vs_lblc_schedule`, `__ip_vs_lblc_schedule`,
/// `is_overloaded`, `ip_vs_lblc_check_expire`; Linux 6.1.192; 7.2 picks the same.
///
/// *Complexity*: constant per pick while the remembered server serves and is not overrun; otherwise
/// reads every server. Memory: some 70 bytes per address.
///
/// *When to use*: a firewall-mark virtual server that stands for many addresses, in front of caches. A
/// virtual server with one address gets one server until that one is overrun.
#[derive(Clone, Debug)]
pub struct Lblc {
    cache: Cache<Remembered>,
}

impl Lblc {
    /// With the expiration and the limit that `options` name.
    pub fn new(options: &Options) -> Self {
        Self {
            cache: Cache::new(options.lblc_expiration, options.locality_limit),
        }
    }
}

impl Scheduler for Lblc {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        let (family, dialled, now) = (servers.family(), request.destination, request.at);
        self.cache.collect(now);
        let mut remembered = self.cache.get(family, dialled, now);
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
            self.cache.replace(family, dialled, now, value);
        }
        Some(id)
    }

    fn bound(&mut self, _: &Servers, at: Duration) -> Result<(), Error> {
        self.cache.start(at);
        Ok(())
    }
}
