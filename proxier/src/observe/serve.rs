//! The HTTP servers: health for load balancers and kubelet, health-check ports of Services, metrics.
//!
//! ```text
//!  daemon ─▶ health::Board, HealthCheckPorts ──────┐            pure
//!  watch ─▶ StatusReader ──────────────────────────┼─▶ View ─▶ answer ─▶ Response
//!                                                  │    a copy per request
//!  clients ─▶ listener ─▶ ConnectionPool ─▶ hyper ─┘
//!                └─▶ BindFailures ─▶ daemon (Events)
//! ```
//!
//! One thread with an async runtime serves all clients. It and the daemon share values behind locks, and
//! both hold a lock only while they copy. So the daemon never waits for a client. Each group of servers
//! has its own [`ConnectionPool`], which bounds its connections.

mod answer;
mod bind_failures;
mod body;
mod health_body;
mod health_ports;
mod listener;
mod local;
mod pool;
mod scrape;
mod socket;
mod status;
mod statusz;
#[cfg(test)]
mod tests;
mod view;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use self::answer::Site;
use self::listener::HttpService;
use self::pool::ConnectionPool;
use crate::observe::health::{Board, Limits};
use crate::observe::overview::Observer;
use crate::sources::watch::StatusReader;

pub(crate) use self::bind_failures::BindFailures;
pub(crate) use self::health_ports::HealthCheckPorts;
pub(crate) use self::scrape::{Scraper, TrafficCounter};
pub(crate) use self::view::ProcessInfo;

/// The number of connections to each group of servers.
///
/// The answer to a probe takes milliseconds. If a group has more connections, the oldest ones are
/// closed: those of clients that send or read slowly.
const MAX_CONNECTIONS: usize = 128;

/// The pause before another attempt to bind an address, as in kube-proxy.
const BIND_PAUSE: Duration = Duration::from_secs(5);

/// The values that the servers need.
#[derive(Debug)]
pub(crate) struct ServeConfig {
    /// The address of `/healthz` and `/livez`; `None`: no such server.
    pub(crate) healthz: Option<SocketAddr>,
    /// The address of `/metrics`, `/proxyMode` and others; `None`: no such server.
    pub(crate) metrics: Option<SocketAddr>,
    /// Whether the metrics server has the page `/status`.
    pub(crate) shows_status: bool,
    /// The socket of `top`.
    pub(crate) socket: PathBuf,
    /// The action if one of these two addresses cannot be bound.
    pub(crate) on_bind_failure: OnBindFailure,
    /// The source of `/metrics`.
    pub(crate) scraper: Scraper,
    /// The limits beyond which the proxy counts as unhealthy.
    pub(crate) limits: Limits,
    /// The facts about the process for `/statusz` and `/configz`.
    pub(crate) process: ProcessInfo,
}

/// The action if the address of `/healthz` or of `/metrics` cannot be bound.
pub(crate) enum OnBindFailure {
    /// Binding is tried again.
    Retry,
    /// This function asks the process to end, as `bindAddressHardFail` demands.
    End(Box<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for OnBindFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "Retry",
            Self::End(_) => "End",
        })
    }
}

/// The values that the daemon and the watch share with the servers.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// The health of the proxy.
    pub(crate) board: Arc<Board>,
    /// The health checks of Services.
    pub(crate) health_ports: Arc<HealthCheckPorts>,
    /// The addresses at which a server cannot listen.
    pub(crate) bind_failures: Arc<BindFailures>,
    /// The watch; `None` with manifests.
    pub(crate) watch: Option<StatusReader>,
    /// Answers clients who look at this node.
    pub(crate) observer: Arc<Observer>,
}

/// The running servers. Dropping them closes all sockets.
#[derive(Debug)]
pub(crate) struct RunningServers {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Starts the servers' thread.
///
/// # Errors
/// If the thread or its runtime cannot be created. An address that cannot be bound is no error here.
pub(crate) fn start(config: ServeConfig, sources: Sources) -> io::Result<RunningServers> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // One reads the kernel for scrapes, the other for those who look. Clients that wait for either occupy none.
        .max_blocking_threads(2)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new()
        .name("serve".into())
        .spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(config, sources) => {}
                    _ = stopped => {}
                }
            });
            // A scrape that reads the kernel must not delay the stop.
            runtime.shutdown_background();
        })?;
    Ok(RunningServers {
        stop: Some(stop),
        thread: Some(thread),
    })
}

/// Serves until the future is dropped.
async fn serve(mut config: ServeConfig, sources: Sources) {
    let on_failure = std::mem::replace(&mut config.on_bind_failure, OnBindFailure::Retry);
    let (healthz, metrics) = (config.healthz, config.metrics);
    let socket = std::mem::take(&mut config.socket);
    let health_ports = sources.health_ports.clone();
    let view = Arc::new(view::Viewer::new(config, sources));
    let service = |site| HttpService {
        site,
        viewer: view.clone(),
        pool: ConnectionPool::new(MAX_CONNECTIONS),
    };
    let server = async |address: Option<SocketAddr>, site| {
        let Some(address) = address else {
            return std::future::pending().await;
        };
        listener::run(address, &on_failure, service(site)).await;
    };
    tokio::join!(
        server(healthz, Site::Health),
        server(metrics, Site::Metrics),
        local::run(socket, service(Site::Local)),
        health_ports::run(&health_ports, &view),
        view.maintain(),
    );
}

impl Drop for RunningServers {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // An error would mean a panic of the thread, but `exit_on_panic` ends the process before.
            let _ = thread.join();
        }
    }
}
