//! Making one change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use relay::{Counts, EndpointPool, PoolError};
use rustix::io::Errno;
use schedulers::Thresholds;

use super::change::{Change, Place};
use super::served::{Pool, Served, Terms, pool_config, transport};
use super::{Userspace, failure, io_failure};
use crate::dataplane::Failure;
use crate::plan::frontend::Frontend;
use crate::plan::{Balancing, Desired, FrontendPlan, SelectedEndpoint};

impl Userspace {
    pub(super) fn execute(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
        match *change {
            Change::Open(frontend) => self.open(frontend, desired, change),
            Change::Configure(frontend) => self.configure(frontend, desired, change),
            Change::Close(frontend) => {
                self.close(&frontend);
                Ok(())
            }
            Change::Add(place, endpoint, weight) => self.change_endpoint(place, change, |pool| {
                pool.endpoints
                    .add(endpoint, weight.into(), Thresholds::default())
            }),
            Change::Weigh(place, endpoint, weight) => self.change_endpoint(place, change, |pool| {
                pool.draining.remove(&endpoint);
                pool.endpoints
                    .set(endpoint, weight.into(), Thresholds::default())
            }),
            Change::Drain(place, endpoint, deadline) => {
                self.drains.reset();
                self.draining.insert(place.frontend);
                self.change_endpoint(place, change, |pool| {
                    pool.draining.insert(endpoint, deadline);
                    pool.endpoints.set(endpoint, 0, Thresholds::default())
                })
            }
            Change::Remove(place, endpoint) | Change::LeaveOut(place, endpoint) => {
                self.remove(place, endpoint, change)
            }
            Change::AddAddress(..) | Change::SetAddress(..) | Change::DeleteAddress(_) => {
                self.addresses.apply(change)
            }
        }
    }

    fn open(
        &mut self,
        frontend: Frontend,
        desired: &Desired,
        change: &Change,
    ) -> Result<(), Failure> {
        let (Some(plan), Some(transport)) = (
            desired.frontends.get(&frontend),
            transport(frontend.protocol),
        ) else {
            return Err(Failure::kernel(Errno::PROTONOSUPPORT, change));
        };
        let terms = Terms::of(plan);
        let balancing = &plan.profile.balancing;
        let outside = self.pool(frontend, balancing, &plan.endpoints, desired, change)?;
        let inside = self.inside_pool(frontend, plan, desired, change)?;
        let route = terms.route(
            &outside,
            inside.as_ref(),
            &self.inside,
            &self.client_sources,
        );
        let opened = self.relay.open(transport, frontend.socket(), route);
        let listening = opened.map_err(|error| failure(Some(error.errno()), error, change))?;
        self.announce_limit();
        let served = Served {
            owner: plan.owner.clone(),
            terms,
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
        desired: &Desired,
        change: &Change,
    ) -> Result<(), Failure> {
        let Some(plan) = desired.frontends.get(&frontend) else {
            return Err(Failure::kernel(Errno::SRCH, change));
        };
        let served = self.served.get(&frontend);
        let needs_inside = plan.inside.is_some() && served.is_some_and(|it| it.inside.is_none());
        let new_inside = match needs_inside {
            true => self.inside_pool(frontend, plan, desired, change)?,
            false => None,
        };
        let now = self.relay.now();
        let served = served_mut(&mut self.served, &frontend, change)?;
        let terms = Terms::of(plan);
        let configure = |pool: &Pool, balancing: &Balancing| {
            let config = pool_config(frontend.family(), balancing);
            let configured = pool.endpoints.configure(&config, now);
            configured.map_err(|error| refused(&error, change))
        };
        if served.terms.balancing != terms.balancing {
            configure(&served.outside, &terms.balancing)?;
        }
        match (&served.inside, &terms.inside) {
            (None, _) => served.inside = new_inside,
            (Some(pool), Some(balancing)) => configure(pool, balancing)?,
            // Its connections move to the other pool.
            (Some(_), None) => {}
        }
        served.terms = terms;
        served.is_stale = true;
        let (outside, inside) = (&served.outside, served.inside.as_ref());
        let route = (served.terms).route(outside, inside, &self.inside, &self.client_sources);
        let updated = self.relay.set_route(&mut served.listening, route);
        updated.map_err(|error| io_failure(&error, change))?;
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

    fn remove(
        &mut self,
        place: Place,
        endpoint: SocketAddr,
        change: &Change,
    ) -> Result<(), Failure> {
        let mut connections = None;
        self.change_endpoint(place, change, |pool| {
            pool.draining.remove(&endpoint);
            connections = pool.endpoints.remove(endpoint);
            Ok(())
        })?;
        // Most removed endpoints have no connections left. Then the workers need not search for any.
        if connections.is_some_and(|left| left != Counts::default()) {
            self.relay.cut();
        }
        if let Some(served) = self.served.get_mut(&place.frontend) {
            served.drop_unused_pool();
        }
        Ok(())
    }

    /// Changes a pool, and then whether its frontend listens.
    fn change_endpoint(
        &mut self,
        place: Place,
        change: &Change,
        edit: impl FnOnce(&mut Pool) -> Result<(), PoolError>,
    ) -> Result<(), Failure> {
        let served = served_mut(&mut self.served, &place.frontend, change)?;
        let pool = served.pool(place);
        let pool = pool.ok_or_else(|| Failure::kernel(Errno::SRCH, change))?;
        edit(pool).map_err(|error| refused(&error, change))?;
        let adjusted = self.relay.adjust(&mut served.listening);
        served.is_stale |= adjusted.is_err();
        adjusted.map_err(|error| io_failure(&error, change))
    }

    /// Returns the pool of a frontend for clients inside the cluster, if these have one.
    fn inside_pool(
        &self,
        frontend: Frontend,
        plan: &FrontendPlan,
        desired: &Desired,
        change: &Change,
    ) -> Result<Option<Pool>, Failure> {
        let inside = plan.inside.as_ref();
        let pool =
            inside.map(|it| self.pool(frontend, &it.balancing, &it.endpoints, desired, change));
        pool.transpose()
    }

    fn pool(
        &self,
        frontend: Frontend,
        balancing: &Balancing,
        endpoints: &[SelectedEndpoint],
        desired: &Desired,
        change: &Change,
    ) -> Result<Pool, Failure> {
        let config = pool_config(frontend.family(), balancing);
        let (room, registry) = (self.affinity.clone(), self.schedulers.clone());
        let pool = EndpointPool::sharing(room, registry, &config, self.relay.now());
        let pool = pool.map_err(|error| refused(&error, change))?;
        for endpoint in endpoints {
            let address = (endpoint.address, endpoint.port).into();
            if !self.is_frontend(&frontend, address, desired) {
                let added = pool.add(address, endpoint.weight.into(), Thresholds::default());
                added.map_err(|error| refused(&error, change))?;
            }
        }
        Ok(Pool {
            endpoints: Arc::new(pool),
            draining: BTreeMap::new(),
        })
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

fn served_mut<'a>(
    served: &'a mut BTreeMap<Frontend, Served>,
    frontend: &Frontend,
    change: &Change,
) -> Result<&'a mut Served, Failure> {
    let served = served.get_mut(frontend);
    served.ok_or_else(|| Failure::kernel(Errno::SRCH, change))
}

fn refused(error: &PoolError, change: &Change) -> Failure {
    failure(Some(error.errno()), error, change)
}
