//! Relays TCP connections and UDP flows from frontends to endpoints, in this process.
//!
//! ```text
//!                       ┌─ worker 0: listeners, connections, flows ─┐
//!  Relay ── RelayCommand ──▶ ├─ worker 1: ..                             ├─ pick ─▶ EndpointPool ─▶ schedulers
//!                       └─ ..                                       ┘
//! ```
//!
//! Each worker has its own listening socket for each frontend (`SO_REUSEPORT`), so that the kernel spreads
//! connections over the workers and no descriptor is shared. Only [`EndpointPool`]s are shared.
//!
//! An event loop of our own instead of an async runtime: a relayed request costs four system calls for
//! bytes, and the CPU time beside them decides the comparison with HAProxy (`bench -- relay`).

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use socket2::{Domain, Protocol, Socket, Type};

mod affinity;
mod datagrams;
mod frontend;
mod pipe;
mod pool;
mod tcp;
mod udp;
mod worker;

pub use frontend::{InsideClients, Route};
pub(crate) use pool::PoolError;
pub use pool::{Counts, EndpointPool, PoolConfig};

use frontend::SharedFrontend;
use worker::{RelayCommand, WAKER, Worker};

/// The connections that the kernel accepts for a listener before the worker does. The kernel limits it
/// to `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;

/// The limits of a relay.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// The number of threads.
    pub workers: usize,
    /// After this time without bytes a TCP connection ends.
    pub tcp_idle: Duration,
    /// After this time without datagrams a UDP flow ends.
    pub udp_idle: Duration,
    /// The most UDP flows of a worker.
    pub udp_flows: usize,
}

/// The defaults of IPVS: 15 minutes for TCP, 5 minutes for UDP (`ip_vs_proto_tcp.c`, `ip_vs_proto_udp.c`).
impl Default for RelayLimits {
    fn default() -> Self {
        let workers = std::thread::available_parallelism();
        Self {
            workers: workers.map_or(1, std::num::NonZero::get),
            tcp_idle: Duration::from_secs(15 * 60),
            udp_idle: Duration::from_secs(5 * 60),
            udp_flows: 16_384,
        }
    }
}

/// The transport protocol of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Counts of all workers since the start.
#[derive(Debug, Default)]
pub struct Statistics {
    connected: AtomicU64,
    refused: AtomicU64,
    exhausted: AtomicU64,
}

impl Statistics {
    fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }

    fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn exhausted(&self) {
        self.exhausted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of connections that reached an endpoint.
    pub fn connections(&self) -> u64 {
        self.connected.load(Ordering::Relaxed)
    }

    /// Returns the number of clients that were reset because no endpoint accepted them.
    pub fn refusals(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns how often the process had no descriptor left.
    pub fn exhaustions(&self) -> u64 {
        self.exhausted.load(Ordering::Relaxed)
    }
}

/// A running relay. Dropping it ends all connections.
#[derive(Debug)]
pub struct Relay {
    workers: Vec<WorkerHandle>,
    statistics: Arc<Statistics>,
    started: Instant,
    next_number: u64,
}

#[derive(Debug)]
struct WorkerHandle {
    commands: Mutex<Sender<RelayCommand>>,
    waker: Waker,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// A frontend whose port is reserved. Dropping it frees the port; [`Relay::close`] closes the listeners.
#[derive(Debug)]
pub struct Listening {
    transport: Transport,
    shared: Arc<SharedFrontend>,
    /// Bound, but not listening: reserves a TCP port while no endpoint is usable, and lets the kernel refuse
    /// connections. `None` for UDP: a bound socket would receive datagrams.
    _reservation: Option<Socket>,
    /// The number of the open listeners; `None` while there are none.
    open: Option<u64>,
}

impl Relay {
    /// Starts the workers.
    ///
    /// # Errors
    /// If the process has no descriptor or thread left.
    pub fn start(limits: RelayLimits) -> io::Result<Self> {
        let mut relay = Self {
            workers: Vec::new(),
            statistics: Arc::default(),
            started: Instant::now(),
            next_number: 0,
        };
        for number in 0..limits.workers.max(1) {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), WAKER)?;
            let (sender, commands) = channel();
            let statistics = relay.statistics.clone();
            let started = relay.started;
            // The worker cannot move to another thread: it has buffers to which the kernel's headers point.
            let run = move || Worker::new(poll, commands, limits, statistics, started).run();
            let thread = std::thread::Builder::new().name(format!("relay-{number}"));
            relay.workers.push(WorkerHandle {
                commands: Mutex::new(sender),
                waker,
                thread: Some(thread.spawn(run)?),
            });
        }
        Ok(relay)
    }

    /// Returns the time since the start, by which pools measure.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the counts of all workers.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Reserves the address of a frontend, and serves it if an endpoint is usable.
    ///
    /// # Errors
    /// If the address is in use, or may not be used without privileges.
    pub fn open(
        &mut self,
        transport: Transport,
        address: SocketAddr,
        route: Route,
    ) -> io::Result<Listening> {
        let bound = bind(transport, address)?;
        let mut listening = Listening {
            transport,
            shared: Arc::new(SharedFrontend::new(address, route)),
            _reservation: (transport == Transport::Tcp).then_some(bound),
            open: None,
        };
        self.adjust(&mut listening)?;
        Ok(listening)
    }

    /// Changes who may connect, and to which endpoints. Existing connections stay.
    ///
    /// # Errors
    /// As [`Relay::adjust`].
    pub fn set_route(&mut self, listening: &mut Listening, route: Route) -> io::Result<()> {
        listening.shared.set_route(route);
        self.adjust(listening)
    }

    /// Listens if an endpoint is usable, otherwise not: then the kernel refuses connections at once.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn adjust(&mut self, listening: &mut Listening) -> io::Result<()> {
        let is_usable = listening.shared.route().is_usable();
        match (is_usable, listening.open) {
            (true, None) => self.listen(listening),
            (false, Some(number)) => {
                listening.open = None;
                self.tell(|| RelayCommand::Close(number));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn listen(&mut self, listening: &mut Listening) -> io::Result<()> {
        let address = listening.shared.address();
        let sockets = (0..self.workers.len()).map(|_| bind(listening.transport, address));
        let sockets: Vec<Socket> = sockets.collect::<io::Result<_>>()?;
        if listening.transport == Transport::Tcp {
            for socket in &sockets {
                socket.listen(BACKLOG)?;
            }
        }
        self.next_number += 1;
        let number = self.next_number;
        listening.open = Some(number);
        for (worker, socket) in self.workers.iter().zip(sockets) {
            let shared = listening.shared.clone();
            worker.tell(match listening.transport {
                Transport::Tcp => RelayCommand::Listen(
                    number,
                    mio::net::TcpListener::from_std(socket.into()),
                    shared,
                ),
                Transport::Udp => RelayCommand::Receive(
                    number,
                    mio::net::UdpSocket::from_std(socket.into()),
                    shared,
                ),
            });
        }
        Ok(())
    }

    /// Closes a frontend. Its connections stay until their endpoints are removed from the pool.
    pub fn close(&mut self, listening: Listening) {
        if let Some(number) = listening.open {
            self.tell(|| RelayCommand::Close(number));
        }
    }

    /// Ends the connections and flows of endpoints that were removed from their pools.
    pub fn cut(&mut self) {
        self.tell(|| RelayCommand::Cut);
    }

    /// Closes all listeners and waits until all connections have ended, for at most `patience`.
    pub fn stop(mut self, patience: Duration) {
        let at = self.now() + patience;
        self.tell(|| RelayCommand::Stop(at));
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }

    fn tell(&self, command: impl Fn() -> RelayCommand) {
        for worker in &self.workers {
            worker.tell(command());
        }
    }
}

impl WorkerHandle {
    fn tell(&self, command: RelayCommand) {
        let sender = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        // A worker ends only with its relay.
        let _ = sender.send(command);
        let _ = self.waker.wake();
    }
}

impl Drop for Relay {
    /// Ends the workers by closing their queues.
    fn drop(&mut self) {
        for mut worker in self.workers.drain(..) {
            drop(worker.commands);
            let _ = worker.waker.wake();
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// Returns a socket bound to `address`.
///
/// The address need not be local yet (`IP_FREEBIND`, which needs no privilege): a service address becomes
/// local only after its frontends are ready.
fn bind(transport: Transport, address: SocketAddr) -> io::Result<Socket> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(
        Domain::for_address(address),
        kind.nonblocking(),
        Some(protocol),
    )?;
    socket.set_reuse_port(true)?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_freebind_v6(true)?;
        }
    }
    if transport == Transport::Tcp {
        // Without it, connections of an earlier process in TIME_WAIT would hold the port.
        socket.set_reuse_address(true)?;
        // Accepted sockets inherit it.
        socket.set_tcp_nodelay(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
