//! The health-check node ports of Services (`spec.healthCheckNodePort`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::answer::Site;
use super::listener::{self, HttpService};
use super::pool::ConnectionPool;
use super::view::Viewer;
use super::{BIND_PAUSE, MAX_CONNECTIONS, socket};
use crate::cluster::model::Family;
use crate::plan::HealthCheck;

/// The planned health checks, by port. The daemon writes what changed; the servers read it.
#[derive(Debug, Default)]
pub struct HealthCheckPorts {
    wanted: Mutex<Wanted>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Wanted {
    checks: BTreeMap<u16, Arc<HealthCheck>>,
    addresses: Vec<IpAddr>,
    /// The ports that changed since the servers looked.
    touched: BTreeSet<u16>,
}

impl HealthCheckPorts {
    /// Replaces the health checks of some ports; `None` removes one.
    pub fn update(&self, changes: impl IntoIterator<Item = (u16, Option<HealthCheck>)>) {
        let mut wanted = self.lock();
        for (port, check) in changes {
            match check {
                Some(check) => wanted.checks.insert(port, Arc::new(check)),
                None => wanted.checks.remove(&port),
            };
            wanted.touched.insert(port);
        }
        if !wanted.touched.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Replaces the addresses at which every port listens.
    pub fn listen_at(&self, addresses: Vec<IpAddr>) {
        let mut wanted = self.lock();
        if wanted.addresses != addresses {
            wanted.addresses = addresses;
            let Wanted {
                checks, touched, ..
            } = &mut *wanted;
            touched.extend(checks.keys());
            self.changed.notify_one();
        }
    }

    /// Returns the health check of `port`.
    pub(super) fn check(&self, port: u16) -> Option<Arc<HealthCheck>> {
        self.lock().checks.get(&port).cloned()
    }

    /// Returns where each changed port should listen.
    fn take_changes(&self) -> Vec<(u16, BTreeSet<IpAddr>)> {
        let mut wanted = self.lock();
        let touched = std::mem::take(&mut wanted.touched);
        let places = |port| {
            let check = wanted.checks.get(port);
            let has_family = |address: &&IpAddr| {
                check.is_some_and(|check| {
                    check.local_endpoints.contains_key(&Family::from(**address))
                })
            };
            wanted
                .addresses
                .iter()
                .filter(has_family)
                .copied()
                .collect()
        };
        touched.iter().map(|port| (*port, places(port))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        // Each write leaves valid data.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sockets that are open, and those that could not be opened.
struct Sockets {
    viewer: Arc<Viewer>,
    pool: ConnectionPool,
    open: BTreeMap<u16, BTreeMap<IpAddr, AbortHandle>>,
    failed: BTreeMap<u16, BTreeSet<IpAddr>>,
}

/// Opens and closes sockets as the health checks change, for ever.
pub(super) async fn run(ports: &HealthCheckPorts, viewer: &Arc<Viewer>) {
    let mut sockets = Sockets {
        viewer: viewer.clone(),
        pool: ConnectionPool::new(MAX_CONNECTIONS),
        open: BTreeMap::new(),
        failed: BTreeMap::new(),
    };
    loop {
        for (port, places) in ports.take_changes() {
            sockets.follow(port, &places).await;
        }
        let retry = async {
            match sockets.failed.is_empty() {
                true => std::future::pending().await,
                false => tokio::time::sleep(BIND_PAUSE).await,
            }
        };
        tokio::select! {
            () = ports.changed.notified() => {}
            () = retry => sockets.retry(),
        }
    }
}

impl Sockets {
    /// Makes `port` listen at exactly these addresses.
    async fn follow(&mut self, port: u16, places: &BTreeSet<IpAddr>) {
        for place in self.failed.remove(&port).unwrap_or_default() {
            self.viewer.bind_failures().remove((place, port).into());
        }
        let open = self.open.entry(port).or_default();
        let mut has_closed = false;
        open.retain(|place, listener| {
            let is_wanted = places.contains(place);
            if !is_wanted {
                listener.abort();
                has_closed = true;
            }
            is_wanted
        });
        if has_closed {
            // The runtime closes the sockets now. Until then, `0.0.0.0` occupies the port at every address.
            tokio::task::yield_now().await;
        }
        let missing: Vec<IpAddr> = places
            .iter()
            .filter(|place| !open.contains_key(place))
            .copied()
            .collect();
        for place in missing {
            if let Err(error) = self.open(place, port) {
                self.report(place, port, &error);
                self.failed.entry(port).or_default().insert(place);
            }
        }
        if self.open.get(&port).is_some_and(BTreeMap::is_empty) {
            self.open.remove(&port);
        }
    }

    fn report(&self, place: IpAddr, port: u16, error: &std::io::Error) {
        let service = self.viewer.health_check(port).map(|it| it.service.clone());
        let of_service = service.as_ref().map(|name| format!(" of Service {name}"));
        tracing::error!(
            "health-check port {port}{} cannot listen on {place}: {error}; trying again every {} s",
            of_service.unwrap_or_default(),
            BIND_PAUSE.as_secs()
        );
        let failures = self.viewer.bind_failures();
        failures.add(site(place, port), (place, port).into(), service, error);
    }

    fn retry(&mut self) {
        for (port, places) in std::mem::take(&mut self.failed) {
            for place in places {
                match self.open(place, port) {
                    Ok(()) => self.viewer.bind_failures().remove((place, port).into()),
                    // Reported at the first attempt.
                    Err(_) => _ = self.failed.entry(port).or_default().insert(place),
                }
            }
        }
    }

    fn open(&mut self, place: IpAddr, port: u16) -> std::io::Result<()> {
        let listener = socket::listen_in_family(place, port)?;
        let service = HttpService {
            site: site(place, port),
            viewer: self.viewer.clone(),
            pool: self.pool.clone(),
        };
        let task = tokio::spawn(listener::accept(listener, service));
        let open = self.open.entry(port).or_default();
        open.insert(place, task.abort_handle());
        Ok(())
    }
}

fn site(place: IpAddr, port: u16) -> Site {
    Site::HealthPort {
        port,
        family: place.into(),
    }
}
