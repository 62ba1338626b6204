//! Making one change.

use std::net::SocketAddr;

use relay::{Counts, EndpointPool, PoolError};
use rustix::io::Errno;
use schedulers::Thresholds;

use super::Userspace;
use super::change::{Change, EndpointChange, FrontendChange, Place, Share};
use super::served::{Pool, Served, pool_config, route, transport};
use crate::dataplane::Failure;
use crate::plan::frontend::Frontend;
use crate::plan::{Balancing, Desired, FrontendPlan, SelectedEndpoint};

/// The error of a pool, of a listener or of the plan, whose message says nothing of the change.
type Result<T> = std::result::Result<T, Failure>;

impl Userspace {
    pub(super) fn execute(&mut self, change: &Change, desired: &Desired) -> Result<()> {
        let done = match *change {
            Change::Frontend(frontend, FrontendChange::Close) => {
                self.close(&frontend);
                Ok(())
            }
            Change::Frontend(frontend, opens) => match desired.frontends.get(&frontend) {
                Some(plan) if opens == FrontendChange::Open => self.open(frontend, plan, desired),
                Some(plan) => self.configure(frontend, plan, desired),
                None => Err(errno(Errno::SRCH)),
            },
            Change::Endpoint(place, endpoint, change) => {
                self.change_endpoint(place, endpoint, change)
            }
            Change::Address(address, change) => return self.addresses.apply(address, change),
        };
        done.map_err(|failure| Failure {
            message: format!("{change}: {failure}"),
            ..failure
        })
    }

    fn open(&mut self, frontend: Frontend, plan: &FrontendPlan, desired: &Desired) -> Result<()> {
        let transport = transport(frontend.protocol);
        let transport = transport.ok_or_else(|| errno(Errno::PROTONOSUPPORT))?;
        let balancing = &plan.profile.balancing;
        let outside = self.pool(frontend, balancing, &plan.endpoints, desired)?;
        let inside = self.inside_pool(frontend, plan, desired)?;
        let (clients, sources) = (&self.inside, &self.client_sources);
        let route = route(plan, &outside, inside.as_ref(), clients, sources);
        let listening = self.relay.open(transport, frontend.socket(), route)?;
        self.announce_limit();
        let served = Served {
            plan: plan.clone(),
            listening,
            outside,
            inside,
            leaving: None,
            is_stale: false,
        };
        self.served.insert(frontend, served);
        Ok(())
    }

    fn configure(
        &mut self,
        frontend: Frontend,
        plan: &FrontendPlan,
        desired: &Desired,
    ) -> Result<()> {
        let has_pool = |served: &Served| served.inside.is_some();
        let new = match self.served.get(&frontend).is_some_and(has_pool) {
            true => None,
            false => self.inside_pool(frontend, plan, desired)?,
        };
        let now = self.relay.now();
        let served = self.served.get_mut(&frontend);
        let served = served.ok_or_else(|| errno(Errno::SRCH))?;
        let configure = |pool: &Pool, balancing| {
            let config = pool_config(frontend.family(), balancing);
            pool.endpoints.configure(&config, now)
        };
        if served.plan.profile.balancing != plan.profile.balancing {
            configure(&served.outside, &plan.profile.balancing)?;
        }
        match (&served.inside, &plan.inside) {
            (None, _) => served.inside = new,
            (Some(pool), Some(inside)) => configure(pool, &inside.balancing)?,
            // Its connections move to the other pool.
            (Some(_), None) => {}
        }
        served.plan = plan.clone();
        served.is_stale = true;
        let (clients, sources) = (&self.inside, &self.client_sources);
        let route = route(
            plan,
            &served.outside,
            served.inside.as_ref(),
            clients,
            sources,
        );
        self.relay.set_route(&mut served.listening, route)?;
        served.is_stale = false;
        Ok(())
    }

    fn close(&mut self, frontend: &Frontend) {
        let Some(served) = self.served.remove(frontend) else {
            return;
        };
        // `Relay::close` keeps connections, as for a frontend without usable endpoints. The removal of their
        // endpoints ends them.
        served.pools().for_each(|(_, pool)| pool.endpoints.clear());
        self.relay.close(served.listening);
        self.relay.cut();
    }

    /// Changes a pool, and then whether its frontend listens.
    fn change_endpoint(
        &mut self,
        place: Place,
        endpoint: SocketAddr,
        change: EndpointChange,
    ) -> Result<()> {
        let served = self.served.get_mut(&place.frontend);
        let served = served.ok_or_else(|| errno(Errno::SRCH))?;
        let pool = match place.is_inside {
            true => served.inside.as_mut(),
            false => Some(&mut served.outside),
        };
        let pool = pool.ok_or_else(|| errno(Errno::SRCH))?;
        let endpoints = &pool.endpoints;
        pool.draining.remove(&endpoint);
        match change {
            EndpointChange::Add(share) => {
                endpoints.add(endpoint, share.weight, share.thresholds)?
            }
            EndpointChange::Weigh(share) => {
                endpoints.set(endpoint, share.weight, share.thresholds)?;
            }
            EndpointChange::Drain(deadline) => {
                endpoints.set(endpoint, 0, Thresholds::default())?;
                pool.draining.insert(endpoint, deadline);
                self.draining.insert(place.frontend);
                self.drains.reset();
            }
            EndpointChange::Remove | EndpointChange::LeaveOut => {
                let connections = endpoints.remove(endpoint);
                served.drop_unused_pool();
                // Most removed endpoints have no connections left. Then the workers need not search for any.
                if connections.is_some_and(|left| left != Counts::default()) {
                    self.relay.cut();
                }
            }
        }
        let adjusted = self.relay.adjust(&mut served.listening);
        served.is_stale |= adjusted.is_err();
        Ok(adjusted?)
    }

    /// Returns the pool of a frontend for clients inside the cluster, if these have one.
    fn inside_pool(
        &self,
        frontend: Frontend,
        plan: &FrontendPlan,
        desired: &Desired,
    ) -> Result<Option<Pool>> {
        let inside = plan.inside.as_ref();
        let pool = inside.map(|it| self.pool(frontend, &it.balancing, &it.endpoints, desired));
        pool.transpose()
    }

    fn pool(
        &self,
        frontend: Frontend,
        balancing: &Balancing,
        endpoints: &[SelectedEndpoint],
        desired: &Desired,
    ) -> Result<Pool> {
        let config = pool_config(frontend.family(), balancing);
        let (room, registry) = (self.affinity.clone(), self.schedulers.clone());
        let pool = EndpointPool::sharing(room, registry, &config, self.relay.now())?;
        for endpoint in endpoints {
            let address = (endpoint.address, endpoint.port).into();
            if !self.is_frontend(&frontend, address, desired) {
                let share = Share::of(endpoint);
                pool.add(address, share.weight, share.thresholds)?;
            }
        }
        Ok(Pool::of(pool))
    }

    /// Logs once that few more frontends can be opened.
    fn announce_limit(&mut self) {
        let (left, all) = self.relay.room();
        let is_nearly_full = left < all / 5;
        if is_nearly_full && !self.is_nearly_full {
            tracing::warn!(
                "{} frontends listen, and only {left} more can: each needs a file per worker, and the process \
                 may open {} files; raise the limit (ulimit -Hn, LimitNOFILE=) or lower --userspace-workers",
                all - left,
                self.relay.file_limit()
            );
        }
        // Announced again only after a fifth of all became free.
        self.is_nearly_full = is_nearly_full || (self.is_nearly_full && left < all / 5 * 2);
    }
}

fn errno(errno: Errno) -> Failure {
    Failure {
        errno: Some(errno),
        message: std::io::Error::from(errno).to_string(),
    }
}

/// A pool and a listener refuse with the error numbers of IPVS and of the kernel.
impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        Self {
            errno: Some(error.errno()),
            message: error.to_string(),
        }
    }
}

impl From<relay::OpenError> for Failure {
    fn from(error: relay::OpenError) -> Self {
        Self {
            errno: Some(error.errno()),
            message: error.to_string(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self {
            errno: Errno::from_io_error(&error),
            message: error.to_string(),
        }
    }
}
