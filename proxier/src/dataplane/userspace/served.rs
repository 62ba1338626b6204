//! A frontend that the relay serves, and its comparison with the plan.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use relay::{
    Counts, EndpointPool, Handling, InsideClients, Listening, PoolConfig, Route, Transport,
};
use schedulers::{Flags, Options};

use super::change::{Change, Place};
use super::client_sources::ClientSources;
use crate::cluster::model::{Family, Networks, Protocol, ServicePortName};
use crate::plan::{Balancing, FrontendPlan, RelayOptions, SelectedEndpoint};

/// A frontend that the relay serves.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) owner: ServicePortName,
    pub(super) terms: Terms,
    pub(super) listening: Listening,
    pub(super) outside: Pool,
    /// The endpoints for clients inside the cluster. After the terms lack them, the pool stays until it has drained.
    pub(super) inside: Option<Pool>,
    /// Until when it keeps its connections, though the plan no longer has it.
    pub(super) leaving: Option<Duration>,
    /// Whether its listeners could not be made to suit its endpoints.
    pub(super) is_stale: bool,
}

/// The plan of a frontend apart from its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) balancing: Balancing,
    /// How connections of clients inside the cluster are spread, if these have a pool of their own.
    pub(super) inside: Option<Balancing>,
    /// The clients that may connect; `None` if all may.
    pub(super) sources: Option<Networks>,
    pub(super) options: RelayOptions,
}

/// The endpoints of a frontend for all clients, or for those inside or outside the cluster.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) endpoints: Arc<EndpointPool>,
    /// The endpoints that the plan no longer has, and until when they keep their connections.
    pub(super) draining: BTreeMap<SocketAddr, Duration>,
}

impl Served {
    /// Returns the pools, each with whether it is that for clients inside.
    pub(super) fn pools(&self) -> impl Iterator<Item = (bool, &Pool)> {
        let inside = self.inside.iter().map(|pool| (true, pool));
        [(false, &self.outside)].into_iter().chain(inside)
    }

    /// Returns a pool of the frontend.
    pub(super) fn pool(&mut self, place: Place) -> Option<&mut Pool> {
        if place.is_inside {
            self.inside.as_mut()
        } else {
            Some(&mut self.outside)
        }
    }

    /// Returns when the next drain is over at the latest; `None` if nothing drains.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let pools = self.pools();
        let drains = pools.flat_map(|(_, pool)| pool.draining.values());
        drains.chain(&self.leaving).min().copied()
    }

    /// Returns whether it has a connection.
    pub(super) fn has_connections(&self) -> bool {
        let mut pools = self.pools();
        pools.any(|(_, pool)| {
            let members = pool.endpoints.members();
            members.into_values().any(|(_, it)| it != Counts::default())
        })
    }

    /// Returns whether it has an endpoint.
    pub(super) fn has_endpoints(&self) -> bool {
        let mut pools = self.pools();
        pools.any(|(_, pool)| !pool.endpoints.members().is_empty())
    }

    /// Removes a pool that no client uses any more.
    pub(super) fn drop_unused_pool(&mut self) {
        let is_unused = |pool: &mut Pool| pool.endpoints.members().is_empty();
        if self.terms.inside.is_none() {
            self.inside.take_if(is_unused);
        }
    }
}

impl Terms {
    pub(super) fn of(plan: &FrontendPlan) -> Self {
        let inside = plan.inside.as_ref();
        Self {
            balancing: plan.profile.balancing.clone(),
            inside: inside.map(|inside| inside.balancing.clone()),
            sources: plan.profile.access.source_ranges.clone(),
            options: plan.profile.relay,
        }
    }

    /// Returns who may connect, and to which endpoints.
    pub(super) fn route(
        &self,
        outside: &Pool,
        inside: Option<&Pool>,
        clients: &Arc<InsideClients>,
        sources: &ClientSources,
    ) -> Route {
        let inside = inside.filter(|_| self.inside.is_some());
        let idle = self.options.idle_timeout_secs;
        Route {
            pool: outside.endpoints.clone(),
            inside: inside.map(|pool| (clients.clone(), pool.endpoints.clone())),
            sources: self.sources.clone(),
            client_sources: sources.of(&self.options),
            handling: Handling {
                proxy_protocol: self.options.proxy_protocol,
                idle: idle.map(|secs| Duration::from_secs(secs.into())),
            },
        }
    }
}

impl Pool {
    /// Appends the changes that lead to the `planned` endpoints. Drains that begin now last until `end`.
    pub(super) fn compare(
        &self,
        place: Place,
        planned: &[SelectedEndpoint],
        is_frontend: &dyn Fn(SocketAddr) -> bool,
        (end, now): (Duration, Duration),
        changes: &mut Vec<Change>,
    ) {
        let mut present = self.endpoints.members();
        for endpoint in planned {
            let address = SocketAddr::from((endpoint.address, endpoint.port));
            if is_frontend(address) {
                continue;
            }
            let is_draining = self.draining.contains_key(&address);
            match present.remove(&address) {
                None => changes.push(Change::Add(place, address, endpoint.weight)),
                Some((weight, _)) if weight != u32::from(endpoint.weight) || is_draining => {
                    changes.push(Change::Weigh(place, address, endpoint.weight));
                }
                Some(_) => {}
            }
        }
        for (address, (_, connections)) in present {
            let deadline = self.draining.get(&address);
            let is_over = |&at: &Duration| at <= now || connections == Counts::default();
            if is_frontend(address) {
                changes.push(Change::LeaveOut(place, address));
            } else if end <= now || deadline.is_some_and(is_over) {
                changes.push(Change::Remove(place, address));
            } else if deadline.is_none() {
                changes.push(Change::Drain(place, address, end));
            }
        }
    }
}

/// Returns the protocol in the relay's terms; `None` if it cannot relay it.
pub(super) fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    }
}

pub(super) fn pool_config(family: Family, balancing: &Balancing) -> PoolConfig {
    let affinity = balancing.affinity_secs;
    PoolConfig {
        scheduler: balancing.scheduler.to_string(),
        options: Options {
            family: match family {
                Family::V4 => schedulers::Family::V4,
                Family::V6 => schedulers::Family::V6,
            },
            flags: Flags {
                fallback: balancing.flags.fallback,
                port: balancing.flags.port,
            },
            ..Options::default()
        },
        affinity: affinity.map(|secs| Duration::from_secs(secs.into())),
    }
}
