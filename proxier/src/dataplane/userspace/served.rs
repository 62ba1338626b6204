//! A frontend that the relay serves, and its comparison with the plan.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use relay::{
    Counts, EndpointPool, Handling, InsideClients, Listening, Membership, PoolConfig, Route,
    Transport,
};
use schedulers::{Flags, Options};

use super::change::{Change, EndpointChange, Place, Share};
use super::client_sources::ClientSources;
use crate::cluster::model::{Family, Protocol};
use crate::plan::{Balancing, FrontendPlan, SelectedEndpoint};

/// A frontend that the relay serves.
#[derive(Debug)]
pub(super) struct Served {
    /// The plan that it follows, except for its endpoints.
    pub(super) plan: FrontendPlan,
    pub(super) listening: Listening,
    pub(super) outside: Pool,
    /// The endpoints for clients inside the cluster. After the plan lacks them, the pool stays until it has drained.
    pub(super) inside: Option<Pool>,
    /// Until when it keeps its connections, though the plan no longer has it.
    pub(super) leaving: Option<Duration>,
    /// Whether its listeners could not be made to suit its endpoints.
    pub(super) is_stale: bool,
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
            members
                .into_values()
                .any(|it| it.counts != Counts::default())
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
        if self.plan.inside.is_none() {
            self.inside.take_if(is_unused);
        }
    }

    /// Returns whether `plan` has the same clients, options, schedulers and affinity. Endpoints do not matter.
    pub(super) fn is_configured_as(&self, plan: &FrontendPlan) -> bool {
        !self.is_stale && terms(&self.plan) == terms(plan)
    }
}

/// Returns the plan of a frontend apart from its endpoints.
fn terms(plan: &FrontendPlan) -> impl PartialEq + '_ {
    let profile = &plan.profile;
    let inside = plan.inside.as_ref().map(|inside| &inside.balancing);
    let sources = &profile.access.source_ranges;
    (sources, &profile.balancing, profile.relay, inside)
}

/// Returns who may connect to a frontend, and to which endpoints.
pub(super) fn route(
    plan: &FrontendPlan,
    outside: &Pool,
    inside: Option<&Pool>,
    clients: &Arc<InsideClients>,
    sources: &ClientSources,
) -> Route {
    let options = &plan.profile.relay;
    let inside = inside.filter(|_| plan.inside.is_some());
    let idle = options.idle_timeout_secs;
    Route {
        pool: outside.endpoints.clone(),
        inside: inside.map(|pool| (clients.clone(), pool.endpoints.clone())),
        sources: plan.profile.access.source_ranges.clone(),
        client_sources: sources.of(options),
        handling: Handling {
            proxy_protocol: options.proxy_protocol,
            idle: idle.map(|secs| Duration::from_secs(secs.into())),
        },
    }
}

impl Pool {
    pub(super) fn of(endpoints: EndpointPool) -> Self {
        Self {
            endpoints: Arc::new(endpoints),
            draining: BTreeMap::new(),
        }
    }

    /// Appends the changes that lead to the `planned` endpoints. Drains that begin now last until `end`.
    pub(super) fn compare(
        &self,
        place: Place,
        planned: &[SelectedEndpoint],
        is_frontend: &dyn Fn(SocketAddr) -> bool,
        (end, now): (Duration, Duration),
        changes: &mut Vec<Change>,
    ) {
        let mut push = |address, change| changes.push(Change::Endpoint(place, address, change));
        let mut present = self.endpoints.members();
        for endpoint in planned {
            let address = SocketAddr::from((endpoint.address, endpoint.port));
            if is_frontend(address) {
                continue;
            }
            let share = Share::of(endpoint);
            let is_draining = self.draining.contains_key(&address);
            match present.remove(&address) {
                None => push(address, EndpointChange::Add(share)),
                Some(it)
                    if (it.weight, it.thresholds) == (share.weight, share.thresholds)
                        && !is_draining => {}
                Some(_) => push(address, EndpointChange::Weigh(share)),
            }
        }
        for (address, Membership { counts, .. }) in present {
            let deadline = self.draining.get(&address);
            let is_over = |&at: &Duration| at <= now || counts == Counts::default();
            if is_frontend(address) {
                push(address, EndpointChange::LeaveOut);
            } else if end <= now || deadline.is_some_and(is_over) {
                push(address, EndpointChange::Remove);
            } else if deadline.is_none() {
                push(address, EndpointChange::Drain(end));
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
