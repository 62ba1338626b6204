//! Locality-based least connections with replication.

use std::time::Duration;

use crate::error::Error;
use crate::kernel::cache::Cache;
use crate::kernel::locality::{Remembered, is_overrun, least_loaded};
use crate::options::Options;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::{Server, ServerId};
use crate::servers::Servers;

/// `lblcr`: the same few servers for the same frontend address, more if they are overrun.
///
/// *Formula*: every frontend address has a set of servers. The least loaded eligible member by wlc's
/// measure gets the connection. If that member is overrun (see [`Lblc`](super::Lblc)), wlc's choice among
/// all servers gets it instead and joins the set. A set that has not changed for longer than
/// [`Options::lblcr_expiration`] loses its most loaded member at the next pick, even if that pick returns
/// it. Of equally loaded members, the one that joined last wins.
///
/// *Memory of addresses*: as for [`Lblc`](super::Lblc), with [`Options::lblcr_expiration`]. A removed
/// server stays in the set and is used again when it is added again.
///
/// *Source*: `net/netfilter/ipvs/ip_vs_lblcr.c`, `ip_vs_lblcr_schedule`, `ip_vs_dest_set_min`,
/// `ip_vs_dest_set_max`, `ip_vs_lblcr_check_expire`; Linux 6.1.192; 7.2 picks the same.
///
/// *Complexity*: reads the set at every pick, and every server if the set is overrun. Memory: about 80
/// bytes per address and 40 per member.
///
/// *When to use*: as lblc, if one address needs more than one server.
#[derive(Clone, Debug)]
pub struct Lblcr {
    cache: Cache<Set>,
    expiration: Duration,
}

/// The servers of a frontend address.
#[derive(Clone, Debug)]
struct Set {
    /// In the order of joining: the kernel's list reversed.
    members: Vec<Member>,
    changed: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    remembered: Remembered,
    /// The weight at its last removal, used once the server has no connections and is forgotten.
    last_weight: i32,
}

impl Lblcr {
    /// Creates a scheduler with the expiration and the limit of `options`.
    pub fn new(options: &Options) -> Self {
        Self {
            cache: Cache::new(options.lblcr_expiration, options.locality_limit),
            expiration: options.lblcr_expiration,
        }
    }
}

impl Set {
    fn of(member: Member, now: Duration) -> Self {
        Self {
            members: vec![member],
            changed: now,
        }
    }

    fn least_loaded<'a>(&mut self, servers: &'a Servers) -> Option<(ServerId, &'a Server)> {
        let flavour = servers.flavour();
        let mut best: Option<(ServerId, &Server)> = None;
        let mut least = 0;
        for member in self.members.iter_mut().rev() {
            let Some((id, server)) = member.remembered.find(servers) else {
                continue;
            };
            if !server.listed || server.overloaded {
                continue;
            }
            let load = i64::from(server.overhead(flavour));
            let is_better = match best {
                None => server.weight > 0,
                Some((_, best)) => least * i64::from(server.weight) > load * i64::from(best.weight),
            };
            if is_better {
                (best, least) = (Some((id, server)), load);
            }
        }
        best
    }

    /// Returns the index of the member with the greatest load per weight.
    ///
    /// Like `ip_vs_dest_set_max`, this includes removed and overloaded servers.
    fn most_loaded(&mut self, servers: &Servers) -> Option<usize> {
        let flavour = servers.flavour();
        let mut worst = None;
        for (index, member) in self.members.iter_mut().enumerate().rev() {
            let (weight, load) = match member.remembered.find(servers) {
                Some((_, server)) => (server.weight, server.overhead(flavour)),
                None => (member.last_weight, 0),
            };
            let (weight, load) = (i64::from(weight), i64::from(load));
            let is_worse = match worst {
                None => true,
                Some((_, worst_weight, most)) => most * weight < load * worst_weight,
            };
            if weight > 0 && is_worse {
                worst = Some((index, weight, load));
            }
        }
        worst.map(|(index, ..)| index)
    }

    fn shrink(&mut self, servers: &Servers, now: Duration) {
        if let Some(index) = self.most_loaded(servers) {
            self.members.remove(index);
            self.changed = now;
        }
    }

    fn join(&mut self, id: ServerId, server: &Server, now: Duration) {
        let is_member = |member: &Member| member.remembered.is(server);
        if !self.members.iter().any(is_member) {
            self.members.push(Member::new(id, server));
            self.changed = now;
        }
    }
}

impl Member {
    fn new(id: ServerId, server: &Server) -> Self {
        Self {
            remembered: Remembered::new(id, server),
            last_weight: server.weight,
        }
    }
}

impl Scheduler for Lblcr {
    fn pick(&mut self, servers: &Servers, request: &Request) -> Option<ServerId> {
        let (family, frontend, now) = (servers.family(), request.destination, request.at);
        self.cache.collect(now);
        let Some(set) = self.cache.get(family, frontend, now) else {
            let (id, server) = least_loaded(servers)?;
            let set = Set::of(Member::new(id, server), now);
            self.cache.insert(family, frontend, now, set);
            return Some(id);
        };
        // As in the kernel, the set shrinks after its member was chosen and before it is used:
        // the connection may go to the member that is dropped here.
        let member = set.least_loaded(servers);
        if set.members.len() > 1 && now.saturating_sub(set.changed) > self.expiration {
            set.shrink(servers, now);
        }
        if let Some((id, server)) = member
            && !is_overrun(server, servers)
        {
            return Some(id);
        }
        let (id, server) = least_loaded(servers)?;
        set.join(id, server, now);
        Some(id)
    }

    fn bound(&mut self, _: &Servers, at: Duration) -> Result<(), Error> {
        self.cache.start(at);
        Ok(())
    }

    fn removed(&mut self, servers: &Servers, server: ServerId, _: Option<ServerId>) {
        let Some(server) = servers.get(server) else {
            return;
        };
        // The kernel's set holds a reference to the removed destination and reads its weight there.
        // Here the server is forgotten with its last connection, so the set keeps a copy.
        let members = self.cache.values_mut().flat_map(|set| &mut set.members);
        for member in members.filter(|member| member.remembered.is(server)) {
            member.last_weight = server.weight;
        }
    }
}
