//! Relays TCP connections and UDP flows from frontends to endpoints, in this process.
//!
//! ```text
//!                            ┌─ worker 0: listeners, connections, flows ─┐
//!  Relay ── RelayCommand ──▶ ├─ worker 1: ..                             ├─ pick ─▶ EndpointPool ─▶ schedulers
//!                            └─ ..                                       ┘
//! ```
//!
//! Each worker has its own listening socket for each frontend (`SO_REUSEPORT`), so that the kernel spreads
//! connections over the workers and no descriptor is shared. Only [`EndpointPool`]s are shared.
//!
//! Workers have an event loop of their own instead of an async runtime. A relayed request needs four system
//! calls for its bytes; the CPU time beside them decides the comparison with HAProxy (`bench -- relay`).

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use socket2::{Domain, Protocol, Socket, Type};

mod affinity;
mod answers;
mod budget;
mod datagrams;
mod frontend;
mod holder;
mod hops;
mod kernel_pipe;
mod pipe;
mod pool;
mod proxy_header;
mod refusal;
mod source;
mod statistics;
mod tcp;
mod transit;
mod udp;
mod worker;

pub use affinity::AffinityRoom;
pub use frontend::{Handling, InsideClients, Route};
pub use pool::{
    Counts, EndpointPool, EndpointState, Membership, PoolConfig, PoolError, kernel_schedulers,
};
pub use source::LocalAnswers;
pub use statistics::{Statistics, Tally};

use budget::{Budget, ListenerPermit};
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
    /// The descriptors that this process may have.
    pub files: usize,
    /// The bytes of slow receivers that a worker has in its memory, at most. The kernel keeps all others.
    pub held: usize,
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
            files: file_limit(),
            held: 16 << 20,
        }
    }
}

/// Returns the number of descriptors that this process may have.
///
/// Without a limit, the kernel's memory is one: a million connections need gigabytes of it.
fn file_limit() -> usize {
    const MANY: u64 = 1 << 21;
    let limit = getrlimit(Resource::Nofile).current;
    usize::try_from(limit.unwrap_or(MANY).min(MANY)).unwrap_or(usize::MAX)
}

/// The transport protocol of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The reason why a frontend cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refuses the address, for example because it needs a privilege.
    #[error(transparent)]
    Refused(#[from] io::Error),
    /// Another socket has the address: that of this process, if it is known.
    #[error("address in use{}", .0.as_ref().map(|holder| format!(" by {holder}")).unwrap_or_default())]
    Taken(Option<String>),
    /// The listeners would leave too few descriptors for connections.
    #[error(
        "the listeners of this relay would need more than {most} of the {limit} files that the process may \
         open, and leave too few for connections; raise the limit (ulimit -Hn, LimitNOFILE=) or lower \
         --userspace-workers"
    )]
    Listeners {
        /// The most descriptors for listeners.
        most: usize,
        /// The limit of the process.
        limit: usize,
    },
}

impl OpenError {
    /// Returns the error number of the kernel for such errors.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Refused(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
            Self::Taken(_) => Errno::ADDRINUSE,
            Self::Listeners { .. } => Errno::MFILE,
        }
    }
}

/// A running relay. Dropping it ends all connections.
#[derive(Debug)]
pub struct Relay {
    workers: Vec<WorkerHandle>,
    statistics: Arc<Statistics>,
    budget: Arc<Budget>,
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
    /// Bound, but not listening: reserves the port while no endpoint is usable, and lets the kernel refuse
    /// clients. `None` while there are listeners.
    reservation: Option<Socket>,
    /// The number of the open listeners; `None` while there are none.
    open: Option<u64>,
    _permit: ListenerPermit,
}

impl Relay {
    /// Starts the workers.
    ///
    /// # Errors
    /// If the process has no descriptor or thread left.
    pub fn start(limits: RelayLimits) -> io::Result<Self> {
        let statistics = Arc::new(Statistics::new(limits.files));
        let mut relay = Self {
            workers: Vec::new(),
            budget: Arc::new(Budget::new(limits.files, statistics.clone())),
            statistics,
            started: Instant::now(),
            next_number: 0,
        };
        for number in 0..limits.workers.max(1) {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), WAKER)?;
            let (sender, commands) = channel();
            let (budget, started) = (relay.budget.clone(), relay.started);
            // The worker cannot move to another thread: it has buffers to which the kernel's headers point.
            let run = move || Worker::new(poll, commands, limits, budget, started).run();
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

    /// Returns the number of descriptors that this process may have.
    pub fn file_limit(&self) -> usize {
        self.budget.limit()
    }

    /// Returns the number of frontends that can still be opened, and of all that could be.
    pub fn room(&self) -> (usize, usize) {
        let (most, used) = self.budget.listeners();
        let each = self.workers.len();
        (most.saturating_sub(used) / each, most / each)
    }

    /// Reserves the address of a frontend, and serves it if an endpoint is usable.
    ///
    /// # Errors
    /// If the address is in use, or may not be used without privileges, or too few descriptors would be left
    /// for connections.
    pub fn open(
        &mut self,
        transport: Transport,
        address: SocketAddr,
        route: Route,
    ) -> Result<Listening, OpenError> {
        let permit = self.budget.take_listeners(self.workers.len());
        let permit = permit.ok_or_else(|| OpenError::Listeners {
            most: self.budget.listeners().0,
            limit: self.budget.limit(),
        })?;
        let bound = bind(transport, address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => OpenError::Taken(holder::holder(transport, address)),
            _ => OpenError::Refused(error),
        })?;
        let mut listening = Listening {
            transport,
            shared: Arc::new(SharedFrontend::new(address, route)),
            reservation: reserve(bound, transport, address),
            open: None,
            _permit: permit,
        };
        self.adjust(&mut listening)?;
        Ok(listening)
    }

    /// Changes the clients that may connect, and their endpoints.
    ///
    /// Connections and flows of clients that may no longer connect end. A flow to an endpoint that its client may no longer use
    /// ends too, so that the client's next datagram gets another one. A connection stays until the endpoint is
    /// removed, as with IPVS.
    ///
    /// # Errors
    /// As [`Relay::adjust`].
    pub fn set_route(&mut self, listening: &mut Listening, route: Route) -> io::Result<()> {
        if listening.shared.set_route(route) {
            self.tell(|| RelayCommand::Review);
        }
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
                // Before the listeners close, so that the port is never free.
                let (transport, address) = (listening.transport, listening.shared.address());
                listening.reservation = reserve(bind(transport, address)?, transport, address);
                listening.open = None;
                self.tell(|| RelayCommand::Close(number));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn listen(&mut self, listening: &mut Listening) -> io::Result<()> {
        let address = listening.shared.address();
        if listening.transport == Transport::Udp {
            // Beside a connected socket, the kernel would choose among the listeners in a slower way.
            listening.reservation = None;
        }
        // A reservation becomes the first listener only when all others are bound: after an error it must
        // still hold the port.
        let has_one = usize::from(listening.reservation.is_some());
        let sockets = (has_one..self.workers.len()).map(|_| bind(listening.transport, address));
        let mut sockets: Vec<Socket> = sockets.collect::<io::Result<_>>()?;
        sockets.extend(listening.reservation.take());
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
        self.tell(|| RelayCommand::Review);
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
            // Before the wake-up: a worker that finds its queue open sleeps again.
            drop(worker.commands);
            let _ = worker.waker.wake();
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// Makes a bound socket reserve its address, without receiving: the kernel refuses clients then.
///
/// `None` if it cannot, as for datagrams to an address that is not local yet.
fn reserve(socket: Socket, transport: Transport, address: SocketAddr) -> Option<Socket> {
    match transport {
        Transport::Tcp => Some(socket),
        // It would receive datagrams of its own address only, which none has.
        Transport::Udp => socket.connect(&address.into()).is_ok().then_some(socket),
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
