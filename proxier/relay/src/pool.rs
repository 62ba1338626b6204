//! The endpoints of one virtual server, and the choice among them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use schedulers::{Balancer, Options, Registry, Request, Server, ServerId, Thresholds};

use crate::Transport;
use crate::affinity::{Affinity, AffinityRoom};

mod member;

pub use member::{Counts, EndpointState, Membership};

/// The first pause of an endpoint that does not accept connections; doubled after each further failure.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
/// The longest pause. An endpoint that works again gets clients after it at the latest.
const LAST_EJECTION: Duration = Duration::from_secs(60);

/// The configuration of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The name of the scheduler.
    pub scheduler: String,
    /// Its options.
    pub options: Options,
    /// How long a client keeps its endpoint after its last new connection; `None` without affinity.
    pub affinity: Option<Duration>,
}

/// The kernel's schedulers, which nearly all pools share.
static KERNEL: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::kernel()));

/// Returns the kernel's schedulers.
pub fn kernel_schedulers() -> Arc<Registry> {
    KERNEL.clone()
}

/// The endpoints of a virtual server.
///
/// All workers share it, because one scheduler state per worker would make other picks than the kernel. A
/// pick holds the lock for about 100 ns, so workers rarely wait for each other.
#[derive(Debug)]
pub struct EndpointPool {
    registry: Arc<Registry>,
    room: Arc<AffinityRoom>,
    state: Mutex<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    balancer: Balancer,
    endpoints: HashMap<SocketAddr, Member>,
    /// The addresses of ejected endpoints, so that a pick need not walk over all endpoints.
    ejected: Vec<SocketAddr>,
    affinity: Option<Affinity>,
}

/// The state of an endpoint in addition to the balancer's server.
#[derive(Debug)]
struct Member {
    id: ServerId,
    weight: u32,
    thresholds: Thresholds,
    /// The connections that it got since it was added.
    connections: u64,
    /// The number of failed connections since the last successful one.
    failures: u32,
    /// When an ejected endpoint gets connections again.
    ejected_until: Option<Duration>,
    /// Set when the endpoint is removed: its connections must end.
    is_cut: Arc<AtomicBool>,
}

/// The error of a change that a pool refuses.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PoolError(#[from] schedulers::Error);

impl PoolError {
    /// Returns the error number with which the kernel refuses the same change of a virtual server.
    pub fn errno(&self) -> Errno {
        match self.0 {
            schedulers::Error::UnknownScheduler { .. } | schedulers::Error::NotFound => {
                Errno::NOENT
            }
            schedulers::Error::Exists(_) => Errno::EXIST,
            schedulers::Error::Weight(_) | schedulers::Error::Thresholds { .. } => Errno::RANGE,
            _ => Errno::INVAL,
        }
    }
}

impl EndpointPool {
    /// Returns a pool without endpoints, at time `now`, with the kernel's schedulers.
    ///
    /// # Errors
    /// If no scheduler has that name.
    pub fn new(config: &PoolConfig, now: Duration) -> Result<Self, PoolError> {
        Self::sharing(Arc::default(), kernel_schedulers(), config, now)
    }

    /// Returns a pool without endpoints, at time `now`, with the schedulers of `registry`. Pools share the `room` for
    /// the clients that they remember.
    ///
    /// # Errors
    /// If no scheduler has that name.
    pub fn sharing(
        room: Arc<AffinityRoom>,
        registry: Arc<Registry>,
        config: &PoolConfig,
        now: Duration,
    ) -> Result<Self, PoolError> {
        let scheduler = registry.build(&config.scheduler, &config.options)?;
        let state = PoolState {
            balancer: Balancer::starting_at(scheduler, &config.options, now),
            endpoints: HashMap::new(),
            ejected: Vec::new(),
            affinity: config.affinity.map(|it| Affinity::new(it, &room)),
        };
        Ok(Self {
            registry,
            room,
            state: Mutex::new(state),
        })
    }

    /// Replaces scheduler and affinity. Endpoints and connections stay.
    ///
    /// # Errors
    /// If no scheduler has that name; then nothing changes.
    pub fn configure(&self, config: &PoolConfig, now: Duration) -> Result<(), PoolError> {
        let scheduler = self.registry.build(&config.scheduler, &config.options)?;
        let mut state = self.lock();
        state.balancer.reschedule(scheduler, now)?;
        match (&mut state.affinity, config.affinity) {
            (Some(affinity), Some(timeout)) => affinity.set_timeout(timeout),
            (affinity, timeout) => *affinity = timeout.map(|it| Affinity::new(it, &self.room)),
        }
        Ok(())
    }

    /// Forgets the clients whose affinity is over, and those that exceed the pool's share of the memory.
    pub fn forget_clients(&self, now: Duration) {
        if let Some(affinity) = &mut self.lock().affinity {
            affinity.forget(now);
        }
    }

    /// Adds an endpoint.
    ///
    /// # Errors
    /// If it exists, or the weight is too large.
    pub fn add(
        &self,
        address: SocketAddr,
        weight: u32,
        thresholds: Thresholds,
    ) -> Result<(), PoolError> {
        let mut state = self.lock();
        let id = state.balancer.add_limited(address, weight, thresholds)?;
        let endpoint = Member {
            id,
            weight,
            thresholds,
            connections: 0,
            failures: 0,
            ejected_until: None,
            is_cut: Arc::default(),
        };
        state.endpoints.insert(address, endpoint);
        Ok(())
    }

    /// Changes weight and thresholds of an endpoint. With weight 0 it gets no new connections.
    ///
    /// # Errors
    /// If it does not exist, or the weight is too large.
    pub fn set(
        &self,
        address: SocketAddr,
        weight: u32,
        thresholds: Thresholds,
    ) -> Result<(), PoolError> {
        let mut state = self.lock();
        let PoolState {
            balancer,
            endpoints,
            ..
        } = &mut *state;
        let endpoint = endpoints.get_mut(&address);
        let endpoint = endpoint.ok_or(schedulers::Error::NotFound)?;
        balancer.set_weight(endpoint.id, weight)?;
        balancer.set_thresholds(endpoint.id, thresholds)?;
        endpoint.weight = weight;
        endpoint.thresholds = thresholds;
        Ok(())
    }

    /// Removes an endpoint. Returns its connections, or `None` if it does not exist.
    ///
    /// From then on, its connections are cut.
    pub fn remove(&self, address: SocketAddr) -> Option<Counts> {
        let mut state = self.lock();
        let endpoint = state.endpoints.remove(&address)?;
        let counts = state.counts(endpoint.id);
        endpoint.is_cut.store(true, Ordering::Release);
        // The id is listed, because `endpoints` has exactly the listed servers.
        let _ = state.balancer.remove(endpoint.id);
        Some(counts)
    }

    /// Removes all endpoints.
    pub fn clear(&self) {
        let addresses: Vec<_> = self.lock().endpoints.keys().copied().collect();
        for address in addresses {
            self.remove(address);
        }
    }

    /// Returns whether an endpoint has a weight above 0.
    pub fn is_usable(&self) -> bool {
        self.lock().endpoints.values().any(|it| it.weight > 0)
    }

    /// Returns whether an endpoint exists that was not tried and has not reached its threshold.
    pub(crate) fn has_other(&self, tried: &[SocketAddr]) -> bool {
        self.lock().other(tried).is_some()
    }

    /// Returns the connection counts of an endpoint.
    pub fn counts(&self, address: SocketAddr) -> Counts {
        let state = self.lock();
        let endpoint = state.endpoints.get(&address);
        endpoint.map_or_else(Counts::default, |endpoint| state.counts(endpoint.id))
    }

    /// Returns the endpoints.
    pub fn members(&self) -> BTreeMap<SocketAddr, Membership> {
        let state = self.lock();
        let members = state.endpoints.iter();
        let member = |it: &Member| Membership {
            weight: it.weight,
            thresholds: it.thresholds,
            counts: state.counts(it.id),
        };
        members
            .map(|(address, it)| (*address, member(it)))
            .collect()
    }

    /// Returns the endpoints, each with its state.
    pub fn states(&self) -> Vec<(SocketAddr, EndpointState)> {
        let state = self.lock();
        let members = state.endpoints.iter();
        let of = |it: &Member| EndpointState {
            counts: state.counts(it.id),
            connections: it.connections,
            is_ejected: it.ejected_until.is_some(),
        };
        members.map(|(address, it)| (*address, of(it))).collect()
    }

    /// Chooses an endpoint for a new connection, and counts the connection. `tried` are the endpoints that
    /// did not accept it.
    ///
    /// `None` if no endpoint is left.
    pub(crate) fn pick(
        self: &Arc<Self>,
        request: &Request,
        tried: &[SocketAddr],
        transport: Transport,
    ) -> Option<Lease> {
        let mut state = self.lock();
        state.end_ejections(request.at);
        let remembered = state.remembered(request, tried);
        let id = remembered.or_else(|| state.choose(request, tried))?;
        let address = address_of(state.balancer.servers().get(id)?);
        let lease = self.lease(&mut state, address, transport == Transport::Tcp)?;
        if let Some(affinity) = &mut state.affinity {
            affinity.remember(request.source, address, request.at);
        }
        Some(lease)
    }

    /// Counts a connection at the endpoint with this address. `None` if the pool lacks it.
    ///
    /// TCP connections count as active, UDP flows as inactive, as in the kernel.
    fn lease(
        self: &Arc<Self>,
        state: &mut PoolState,
        address: SocketAddr,
        is_active: bool,
    ) -> Option<Lease> {
        let member = state.endpoints.get_mut(&address)?;
        member.connections += 1;
        let (id, is_cut) = (member.id, member.is_cut.clone());
        match is_active {
            true => state.balancer.connected(id).ok()?,
            false => state.balancer.opened(id).ok()?,
        }
        Some(Lease {
            pool: Arc::clone(self),
            id,
            address,
            is_active,
            is_cut,
        })
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No code panics while it holds the lock, and a panic in any thread ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    fn counts(&self, id: ServerId) -> Counts {
        let server = self.balancer.servers().get(id);
        server.map_or_else(Counts::default, |server| Counts {
            active: server.active(),
            inactive: server.inactive(),
        })
    }

    /// Returns the endpoint to which affinity binds the client.
    fn remembered(&mut self, request: &Request, tried: &[SocketAddr]) -> Option<ServerId> {
        let affinity = self.affinity.as_mut()?;
        let address = affinity.find(request.source, request.at)?;
        let endpoint = self.endpoints.get(&address)?;
        let is_usable = endpoint.weight > 0 && !tried.contains(&address);
        (is_usable && endpoint.ejected_until.is_none()).then_some(endpoint.id)
    }

    /// Returns the scheduler's choice.
    ///
    /// While no endpoint fails, its refusal stands, as in the kernel: a hash may select an endpoint of weight
    /// 0, or all endpoints may have reached their thresholds.
    fn choose(&mut self, request: &Request, tried: &[SocketAddr]) -> Option<ServerId> {
        let picked = self.balancer.pick(request);
        let is_untried = |server: &Server| !tried.contains(&address_of(server));
        if let Some(id) = picked
            && is_untried(self.balancer.servers().get(id)?)
        {
            return picked;
        }
        if tried.is_empty() && self.ejected.is_empty() {
            return None;
        }
        // Schedulers know no attempts: a hash picks the same endpoint again, and the only remaining endpoint
        // may be ejected. Any endpoint is better than none then.
        self.other(tried)
    }

    /// Returns an endpoint that was not tried and has not reached its threshold.
    fn other(&self, tried: &[SocketAddr]) -> Option<ServerId> {
        let accepts = |server: &Server| {
            let address = address_of(server);
            let is_eligible = server.is_eligible() || self.ejected.contains(&address);
            server.weight() > 0 && is_eligible && !tried.contains(&address)
        };
        let mut servers = self.balancer.servers().iter();
        servers
            .find(|(_, server)| accepts(server))
            .map(|(id, _)| id)
    }

    /// Ends ejections that are over.
    fn end_ejections(&mut self, now: Duration) {
        let Self {
            balancer,
            endpoints,
            ejected,
            ..
        } = self;
        ejected.retain(|address| {
            let Some(endpoint) = endpoints.get_mut(address) else {
                return false;
            };
            let is_over = endpoint.ejected_until.is_none_or(|until| until <= now);
            if is_over {
                endpoint.ejected_until = None;
                // The endpoint is listed, so this cannot fail.
                let _ = balancer.set_overloaded(endpoint.id, false);
            }
            !is_over
        });
    }
}

fn address_of(server: &Server) -> SocketAddr {
    (server.address(), server.port()).into()
}

/// A connection's share of an endpoint. Dropping it ends the count of the connection.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<EndpointPool>,
    id: ServerId,
    address: SocketAddr,
    is_active: bool,
    is_cut: Arc<AtomicBool>,
}

impl Lease {
    /// Returns the endpoint.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the pool.
    pub(crate) fn pool(&self) -> &Arc<EndpointPool> {
        &self.pool
    }

    /// Counts the connection at the same endpoint in another pool from now on. Returns false if that pool lacks it;
    /// then nothing changes.
    pub(crate) fn move_to(&mut self, pool: &Arc<EndpointPool>) -> bool {
        if Arc::ptr_eq(&self.pool, pool) {
            return true;
        }
        let moved = pool.lease(&mut pool.lock(), self.address, self.is_active);
        moved.map(|lease| *self = lease).is_some()
    }

    /// Returns whether the endpoint was removed, so that the connection must end.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Counts the connection as inactive from now on: one side sent its FIN.
    pub(crate) fn half_close(&mut self) {
        if std::mem::take(&mut self.is_active) {
            // Fails if the endpoint was removed, and its counts with it. So do the calls in `drop`.
            let _ = self.pool.lock().balancer.deactivated(self.id);
        }
    }

    /// Records that the endpoint accepted the connection.
    pub(crate) fn succeed(&self) {
        let mut state = self.pool.lock();
        if let Some(endpoint) = state.endpoints.get_mut(&self.address) {
            endpoint.failures = 0;
        }
    }

    /// Records that the endpoint did not accept the connection, and ejects it for a while.
    ///
    /// The last usable endpoint is never ejected.
    pub(crate) fn fail(self, now: Duration) {
        // No deadlock: `state` is dropped before `self`, whose `drop` takes the lock again.
        let mut state = self.pool.lock();
        let PoolState {
            balancer,
            endpoints,
            ejected,
            ..
        } = &mut *state;
        let usable = endpoints.values();
        let usable = usable.filter(|it| it.weight > 0 && it.ejected_until.is_none());
        let is_last = usable.count() <= 1;
        let Some(endpoint) = endpoints.get_mut(&self.address) else {
            return;
        };
        // Doubled up to 64 s, which the longest ejection limits.
        let pause = FIRST_EJECTION.saturating_mul(1 << endpoint.failures.min(6));
        endpoint.failures += 1;
        if !is_last && endpoint.ejected_until.is_none() {
            endpoint.ejected_until = Some(now + pause.min(LAST_EJECTION));
            ejected.push(self.address);
            let _ = balancer.set_overloaded(endpoint.id, true);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        let _ = match self.is_active {
            true => state.balancer.disconnected(self.id),
            false => state.balancer.closed(self.id),
        };
    }
}

#[cfg(test)]
mod tests;
