//! The descriptors of listeners, connections and flows, shared so that no frontend and no client takes all.
//!
//! ```text
//!  limit ─┬─ reserve: files of the rest of the process
//!         ├─ listeners: at most three quarters
//!         └─ connections and flows: a frontend or a client has at most 8 times the free descriptors
//! ```
//!
//! Switches with shared buffers use the last rule too (dynamic thresholds; Choudhury and Hahne, 1998). One
//! greedy client gets eight ninths, two get eight seventeenths each, and a new client always gets some.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Statistics;
use crate::frontend::SharedFrontend;
use crate::pool::Lease;

/// A frontend or a client may have this many times the free descriptors.
const SHARE: usize = 8;

/// The maximum number of descriptors for the rest of the process: manifests, probes, connections to the API
/// server.
const RESERVE: usize = 1_024;

/// The descriptors of a TCP connection: the client's and the endpoint's.
pub(crate) const PER_CONNECTION: usize = 2;
/// The descriptors of a UDP flow: the endpoint's.
pub(crate) const PER_FLOW: usize = 1;

/// The descriptors of a relay and their users.
#[derive(Debug)]
pub(crate) struct Budget {
    /// The limit of the process, for messages and metrics.
    limit: usize,
    total: usize,
    listening: AtomicUsize,
    connected: AtomicUsize,
    /// The descriptors of the connections and flows of each client.
    clients: Mutex<HashMap<IpAddr, usize>>,
    statistics: Arc<Statistics>,
}

impl Budget {
    /// Returns the budget of a process that may have `limit` descriptors.
    pub(crate) fn new(limit: usize, statistics: Arc<Statistics>) -> Self {
        Self {
            limit,
            // Under a limit of 1,024, the default of many systems, a full reserve would leave the
            // relay nothing.
            total: limit - RESERVE.min(limit / 8),
            listening: AtomicUsize::new(0),
            connected: AtomicUsize::new(0),
            clients: Mutex::default(),
            statistics,
        }
    }

    /// Returns the counts of all workers.
    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the limit of the process.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the maximum and the present number of descriptors of listeners.
    pub(crate) fn listeners(&self) -> (usize, usize) {
        (self.total / 4 * 3, self.listening.load(Ordering::Relaxed))
    }

    /// Takes descriptors for listeners; `None` if too few are left for connections.
    pub(crate) fn take_listeners(self: &Arc<Self>, count: usize) -> Option<ListenerPermit> {
        let (most, _) = self.listeners();
        let taken = self
            .listening
            // Relaxed here and below: the counts guard no other memory.
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used + count).filter(|&used| used <= most)
            });
        taken.ok()?;
        self.statistics.listener_files.increment(count as f64);
        Some(ListenerPermit {
            budget: self.clone(),
            count,
        })
    }

    fn free(&self) -> usize {
        let used = self.listening.load(Ordering::Relaxed) + self.connected.load(Ordering::Relaxed);
        self.total.saturating_sub(used)
    }

    /// Returns whether a frontend may have one more connection, whatever its client.
    pub(crate) fn has_room(&self, frontend: &SharedFrontend) -> bool {
        let free = self.free();
        free >= PER_CONNECTION && frontend.descriptors() < free * SHARE
    }

    /// Takes `count` descriptors for a connection or flow of `client`; `None` if that exceeds the share of the
    /// client or of the frontend.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        frontend: &Arc<SharedFrontend>,
        client: IpAddr,
        count: usize,
    ) -> Option<Permit> {
        let free = self.free();
        if free < count || frontend.descriptors() >= free * SHARE {
            return None;
        }
        self.reserve_accepted(frontend, client, count)
    }

    /// As [`Budget::reserve`], for a client that was accepted because the frontend had room.
    ///
    /// Another worker may have taken that room meanwhile. The client is not reset then, so each worker may exceed
    /// the share by one connection. The descriptors come from the reserve.
    pub(crate) fn reserve_accepted(
        self: &Arc<Self>,
        frontend: &Arc<SharedFrontend>,
        client: IpAddr,
        count: usize,
    ) -> Option<Permit> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Read and taken under the lock, so that a client's share is exact.
        let most = self.free().max(count) * SHARE;
        match clients.entry(client) {
            Entry::Occupied(held) if *held.get() >= most => return None,
            Entry::Occupied(mut held) => *held.get_mut() += count,
            Entry::Vacant(first) => drop(first.insert(count)),
        }
        self.connected.fetch_add(count, Ordering::Relaxed);
        // A frontend's count needs no lock. A worker that reads it before this update may reserve for one connection more,
        // which does no harm.
        drop(clients);
        self.statistics.connection_files.increment(count as f64);
        frontend.take_descriptors(count);
        Some(Permit {
            budget: self.clone(),
            revision: frontend.revision(),
            frontend: frontend.clone(),
            client,
            count,
        })
    }
}

/// The descriptors of a frontend's listeners. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct ListenerPermit {
    budget: Arc<Budget>,
    count: usize,
}

impl Drop for ListenerPermit {
    fn drop(&mut self) {
        self.budget
            .listening
            .fetch_sub(self.count, Ordering::Relaxed);
        self.budget
            .statistics
            .listener_files
            .increment(-(self.count as f64));
    }
}

/// The descriptors of a connection or flow. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    frontend: Arc<SharedFrontend>,
    client: IpAddr,
    count: usize,
    /// The revision of the frontend whose route permits the connection.
    pub(crate) revision: usize,
}

/// What the route of a frontend permits to a client that has an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// This endpoint.
    Endpoint,
    /// Other endpoints.
    Others,
    Nothing,
}

impl Permit {
    /// Returns what a new route permits, and moves `lease` to the pool of the client there.
    pub(crate) fn review(&mut self, lease: &mut Lease) -> Permission {
        let revision = self.frontend.revision();
        if std::mem::replace(&mut self.revision, revision) == revision {
            return Permission::Endpoint;
        }
        match self.frontend.route().pool_for(self.client) {
            None => Permission::Nothing,
            Some(pool) if lease.move_to(pool) => Permission::Endpoint,
            Some(_) => Permission::Others,
        }
    }

    /// Returns the frontend that uses the descriptors.
    pub(crate) fn frontend(&self) -> &SharedFrontend {
        &self.frontend
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self {
            budget,
            frontend,
            client,
            count,
            ..
        } = self;
        budget.connected.fetch_sub(*count, Ordering::Relaxed);
        budget
            .statistics
            .connection_files
            .increment(-(*count as f64));
        frontend.return_descriptors(*count);
        let mut clients = budget
            .clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut held) = clients.entry(*client) {
            *held.get_mut() -= *count;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use schedulers::Options;

    use super::*;
    use crate::{EndpointPool, PoolConfig, Route};

    #[test]
    fn a_client_that_was_accepted_is_not_reset_if_another_worker_took_the_room() {
        let budget = Arc::new(Budget::new(100, Arc::new(Statistics::new(100))));
        let config = PoolConfig {
            scheduler: "rr".to_owned(),
            options: Options::default(),
            affinity: None,
        };
        let pool = Arc::new(EndpointPool::new(&config, Duration::ZERO).unwrap());
        let frontend = SharedFrontend::new((Ipv4Addr::LOCALHOST, 80).into(), Route::to(pool));
        let frontend = Arc::new(frontend);
        let client = |host: u8| IpAddr::from([127, 1, 0, host]);
        let mut held = Vec::new();
        while budget.has_room(&frontend) {
            let host = held.len().to_le_bytes()[0];
            held.extend(budget.reserve(&frontend, client(host), PER_CONNECTION));
        }
        // Eight ninths of 88.
        assert_eq!(held.len(), 40);
        let late = client(200);
        assert!(budget.reserve(&frontend, late, PER_CONNECTION).is_none());
        let reserved = budget.reserve_accepted(&frontend, late, PER_CONNECTION);
        assert!(reserved.is_some());
        held.extend(reserved);
        // A client's own share holds.
        let greedy = client(201);
        let more =
            std::iter::from_fn(|| budget.reserve_accepted(&frontend, greedy, PER_CONNECTION));
        held.extend(more.take(40));
        assert!(
            budget
                .reserve_accepted(&frontend, greedy, PER_CONNECTION)
                .is_none()
        );
        drop(held);
        assert!(budget.reserve(&frontend, greedy, PER_CONNECTION).is_some());
    }
}
