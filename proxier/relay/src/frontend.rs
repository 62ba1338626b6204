//! A frontend as the workers use it: its clients, endpoints and descriptors.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use net::{Networks, ProxyProtocol};

use crate::pool::EndpointPool;
use crate::source::LocalAnswers;

/// The clients inside the cluster: clients in its networks, and processes of this node.
#[derive(Debug, Default)]
pub struct InsideClients {
    networks: Vec<Networks>,
    /// The addresses of this node, which change while the relay runs.
    own: Mutex<BTreeSet<IpAddr>>,
}

impl InsideClients {
    /// Returns the clients in these networks.
    pub fn new(networks: impl IntoIterator<Item = Networks>) -> Self {
        Self {
            networks: networks.into_iter().collect(),
            own: Mutex::default(),
        }
    }

    /// Replaces the addresses of this node.
    pub fn set_own(&self, addresses: BTreeSet<IpAddr>) {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    fn has(&self, client: IpAddr) -> bool {
        let own = || self.own.lock().unwrap_or_else(PoisonError::into_inner);
        client.is_loopback()
            || self
                .networks
                .iter()
                .any(|networks| networks.contains(client))
            // Last, because it takes a lock.
            || own().contains(&client)
    }
}

/// The clients that may connect to a frontend, and their endpoints.
#[derive(Clone, Debug)]
pub struct Route {
    /// The endpoints.
    pub pool: Arc<EndpointPool>,
    /// The endpoints for clients inside the cluster, if these differ.
    pub inside: Option<(Arc<InsideClients>, Arc<EndpointPool>)>,
    /// The networks of the clients that may connect; `None` if all may.
    pub sources: Option<Networks>,
    /// Which endpoints see clients' addresses; `None` if all see this node's.
    pub client_sources: Option<Arc<LocalAnswers>>,
    /// The way in which its connections are relayed.
    pub handling: Handling,
}

/// How the connections of a frontend are relayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handling {
    /// The header that an endpoint gets before the first byte of a TCP client.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The idle timeout; `None` for the default of the relay.
    pub idle: Option<Duration>,
}

impl Route {
    /// Returns the route of a frontend that all clients may use.
    pub fn to(pool: Arc<EndpointPool>) -> Self {
        Self {
            pool,
            inside: None,
            sources: None,
            client_sources: None,
            handling: Handling::default(),
        }
    }

    /// Returns the endpoints for a client; `None` if it may not connect.
    pub(crate) fn pool_for(&self, client: IpAddr) -> Option<&Arc<EndpointPool>> {
        let has_client = |sources: &Networks| sources.contains(client);
        if !self.sources.as_ref().is_none_or(has_client) {
            return None;
        }
        match &self.inside {
            Some((inside, pool)) if inside.has(client) => Some(pool),
            _ => Some(&self.pool),
        }
    }

    /// Returns whether each client may use the same endpoints as with `other`.
    fn serves_as(&self, other: &Self) -> bool {
        let is_inside_equal = match (&self.inside, &other.inside) {
            (None, None) => true,
            (Some((clients, pool)), Some((other_clients, other))) => {
                Arc::ptr_eq(clients, other_clients) && Arc::ptr_eq(pool, other)
            }
            _ => false,
        };
        is_inside_equal && Arc::ptr_eq(&self.pool, &other.pool) && self.sources == other.sources
    }

    /// Returns whether `endpoint` sees the address of `client`, which connected to `frontend`.
    pub(crate) fn shows(&self, client: IpAddr, endpoint: IpAddr, frontend: IpAddr) -> bool {
        let answers = self.client_sources.as_ref();
        // A process of this node may connect to a service address from that address.
        answers.is_some_and(|answers| client != frontend && answers.pass(endpoint, client))
    }

    /// Returns whether any client can reach an endpoint.
    pub fn is_usable(&self) -> bool {
        let inside = self.inside.iter().map(|(_, pool)| pool);
        inside.chain([&self.pool]).any(|pool| pool.is_usable())
    }
}

/// A frontend as its listeners see it.
#[derive(Debug)]
pub(crate) struct SharedFrontend {
    address: SocketAddr,
    /// Replaced as a whole, so that a worker uses one route for a connection, whatever changes meanwhile.
    route: Mutex<Arc<Route>>,
    /// The number of routes that took endpoints from clients.
    revision: AtomicUsize,
    /// The descriptors of its connections and flows.
    descriptors: AtomicUsize,
}

impl SharedFrontend {
    pub(crate) fn new(address: SocketAddr, route: Route) -> Self {
        Self {
            address,
            route: Mutex::new(Arc::new(route)),
            revision: AtomicUsize::new(0),
            descriptors: AtomicUsize::new(0),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn route(&self) -> Arc<Route> {
        let route = self.route.lock();
        Arc::clone(&route.unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn revision(&self) -> usize {
        self.revision.load(Ordering::Acquire)
    }

    pub(crate) fn handling(&self) -> Handling {
        self.route().handling
    }

    pub(crate) fn descriptors(&self) -> usize {
        self.descriptors.load(Ordering::Relaxed)
    }

    pub(crate) fn take_descriptors(&self, count: usize) {
        self.descriptors.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn return_descriptors(&self, count: usize) {
        self.descriptors.fetch_sub(count, Ordering::Relaxed);
    }

    /// Replaces the route. Returns whether clients may have lost their endpoint.
    pub(crate) fn set_route(&self, route: Route) -> bool {
        let mut present = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stricter = !route.serves_as(&present);
        *present = Arc::new(route);
        if is_stricter {
            self.revision.fetch_add(1, Ordering::Release);
        }
        is_stricter
    }
}
