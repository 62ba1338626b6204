//! A worker: one thread, one event loop, its own listeners and connections.
//!
//! All registrations are edge-triggered: the kernel reports a change once, and the connection keeps the
//! readiness until a request would block. An idle connection costs no system call, a small request one
//! read and one write in each direction.
//!
//! An async runtime would add tasks and wake-ups between them.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::{TcpListener, UdpSocket};
use mio::{Events, Interest, Poll, Token};
use rustix::io::Errno;
use schedulers::Request;
use slab::Slab;

use crate::RelayLimits;
use crate::budget::{Budget, Permission};
use crate::datagrams::DatagramBatch;
use crate::frontend::SharedFrontend;
use crate::tcp::{AfterEvent, Attempt, Connecting, Readiness, Relaying, Side, reset};
use crate::transit::Transit;
use crate::udp::{Moment, UdpFlows};

mod accept;

/// The token of the waker. No key is that large.
pub(crate) const WAKER: Token = Token(usize::MAX);

/// The maximum number of connections that are accepted at once, before other events get their turn.
const ACCEPTS: usize = 64;

/// The time between two searches for idle connections.
const IDLE_CHECK: Duration = Duration::from_secs(10);

/// After this time without bytes, the kernel probes whether both sides are alive.
const KEEPALIVE_AFTER: u32 = 30;

/// The pause of accepting and connecting after the process ran out of descriptors.
const EXHAUSTION_PAUSE: Duration = Duration::from_millis(100);

/// A request of the [`crate::Relay`].
#[derive(Debug)]
pub(crate) enum RelayCommand {
    /// Accept connections.
    Listen(u64, TcpListener, Arc<SharedFrontend>),
    /// Receive datagrams.
    Receive(u64, UdpSocket, Arc<SharedFrontend>),
    /// Close the listeners with this number.
    Close(u64),
    /// End the connections and flows of removed endpoints, and those that new routes do not permit.
    Review,
    /// Close all listeners, and return when all connections have ended, or at this time.
    Stop(Duration),
}

/// A listening socket.
#[derive(Debug)]
struct Listener {
    number: u64,
    socket: TcpListener,
    frontend: Arc<SharedFrontend>,
}

#[derive(Debug)]
enum Relayed {
    Connecting(Connecting),
    Relaying(Relaying),
    /// It ended during this wake-up.
    Ended,
}

/// The target of a token. The two lowest bits of a token are the kind, and the others the key in its slab.
#[derive(Clone, Copy, Debug)]
enum TokenTarget {
    Side(Side, usize),
    Listener(usize),
    Datagrams(usize),
}

impl TokenTarget {
    fn token(self) -> Token {
        Token(match self {
            Self::Side(Side::Client, key) => key << 2,
            Self::Side(Side::Endpoint, key) => key << 2 | 1,
            Self::Listener(key) => key << 2 | 2,
            Self::Datagrams(key) => key << 2 | 3,
        })
    }

    fn of(Token(token): Token) -> Self {
        let key = token >> 2;
        match token & 3 {
            0 => Self::Side(Side::Client, key),
            1 => Self::Side(Side::Endpoint, key),
            2 => Self::Listener(key),
            _ => Self::Datagrams(key),
        }
    }
}

/// The state of a worker's thread.
#[derive(Debug)]
pub(crate) struct Worker {
    poll: Poll,
    commands: Receiver<RelayCommand>,
    limits: RelayLimits,
    budget: Arc<Budget>,
    listeners: Slab<Listener>,
    connections: Slab<Relayed>,
    flows: UdpFlows,
    /// When the attempts to connect end, each with the key of its connection.
    deadlines: BTreeSet<(Duration, usize)>,
    /// Targets that have more to do although no event will report it.
    again: Vec<TokenTarget>,
    /// The keys of ended connections. Later events of this wake-up may still name them, so they are reused
    /// only after it.
    ended: Vec<usize>,
    /// When accepting and connecting continue after the process ran out of descriptors.
    resume_at: Option<Duration>,
    paused: Vec<usize>,
    /// Clients that were accepted with the last descriptors, so that none is left for their endpoints. No other
    /// client is accepted meanwhile.
    waiting: Vec<Attempt>,
    next_idle_check: Duration,
    stop_at: Option<Duration>,
    started: Instant,
    now: Duration,
    transit: Transit,
    batch: DatagramBatch,
}

impl Worker {
    pub(crate) fn new(
        poll: Poll,
        commands: Receiver<RelayCommand>,
        limits: RelayLimits,
        budget: Arc<Budget>,
        started: Instant,
    ) -> Self {
        Self {
            poll,
            commands,
            limits,
            flows: UdpFlows::new(limits, budget.clone(), |key| {
                TokenTarget::Datagrams(key).token()
            }),
            budget,
            listeners: Slab::new(),
            connections: Slab::new(),
            deadlines: BTreeSet::new(),
            again: Vec::new(),
            ended: Vec::new(),
            resume_at: None,
            paused: Vec::new(),
            waiting: Vec::new(),
            next_idle_check: IDLE_CHECK,
            stop_at: None,
            started,
            now: Duration::ZERO,
            transit: Transit::new(&limits),
            batch: DatagramBatch::new(),
        }
    }

    /// Runs until the relay stops.
    ///
    /// # Errors
    /// If the kernel refuses to wait for events. That is not expected.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1_024);
        loop {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            // One look at the clock for all events.
            self.now = self.started.elapsed();
            for event in &events {
                self.handle(event);
            }
            for target in std::mem::take(&mut self.again) {
                self.proceed(target);
            }
            self.flows.send_answers();
            self.free_ended();
            self.expire();
            self.free_ended();
            if self.obey() {
                return Ok(());
            }
        }
    }

    /// Returns how long the worker may sleep.
    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let has_idle = !self.connections.is_empty() || !self.flows.is_empty();
        let idle = has_idle.then_some(self.next_idle_check);
        let due = [deadline, idle, self.resume_at, self.stop_at];
        let due = due.into_iter().flatten().min()?;
        // epoll counts milliseconds; rounding down would wake the worker several times too early.
        Some(due.saturating_sub(self.started.elapsed()) + Duration::from_millis(1))
    }

    fn handle(&mut self, event: &Event) {
        if event.token() == WAKER {
            return;
        }
        match TokenTarget::of(event.token()) {
            TokenTarget::Side(side, key) => {
                // A failed socket counts as ready: the next read or write returns its error.
                let failed = event.is_error();
                let ready = Readiness {
                    can_read: event.is_readable() || event.is_read_closed() || failed,
                    can_write: event.is_writable() || event.is_write_closed() || failed,
                    is_closing: event.is_read_closed() || failed,
                };
                self.on_socket(key, side, ready, failed);
            }
            target => self.proceed(target),
        }
    }

    fn proceed(&mut self, target: TokenTarget) {
        match target {
            TokenTarget::Side(_, key) => self.pump(key),
            TokenTarget::Listener(key) => self.accept(key),
            TokenTarget::Datagrams(key) => {
                let moment = Moment {
                    registry: self.poll.registry(),
                    now: self.now,
                };
                if self.flows.receive(key, moment, &mut self.batch) {
                    self.again.push(target);
                }
            }
        }
    }

    fn on_socket(&mut self, key: usize, side: Side, ready: Readiness, failed: bool) {
        match self.connections.get_mut(key) {
            Some(Relayed::Relaying(connection)) => {
                connection.note(side, ready);
                self.pump(key);
            }
            Some(Relayed::Connecting(_)) if failed => self.try_next(key),
            Some(Relayed::Connecting(_)) if ready.can_write => self.connected(key, ready),
            _ => {}
        }
    }

    fn pump(&mut self, key: usize) {
        let seconds = self.seconds();
        let Some(Relayed::Relaying(connection)) = self.connections.get_mut(key) else {
            return;
        };
        match connection.pump(&mut self.transit, seconds) {
            AfterEvent::Wait => {}
            AfterEvent::Again => self.again.push(TokenTarget::Side(Side::Client, key)),
            AfterEvent::Finished => drop(self.end(key)),
            AfterEvent::Reset => self.reset(key),
        }
    }

    /// Closes both sockets.
    fn end(&mut self, key: usize) -> Option<Relayed> {
        let connection = self.connections.get_mut(key)?;
        self.ended.push(key);
        let mut ended = std::mem::replace(connection, Relayed::Ended);
        if let Relayed::Relaying(connection) = &mut ended {
            connection.discard(&mut self.transit);
        }
        Some(ended)
    }

    fn reset(&mut self, key: usize) {
        match self.end(key) {
            Some(Relayed::Relaying(connection)) => connection.reset(),
            Some(Relayed::Connecting(connecting)) => {
                self.deadlines.remove(&(connecting.deadline, key));
                reset(&connecting.attempt.client);
            }
            Some(Relayed::Ended) | None => {}
        }
    }

    /// Does the work that is due.
    fn expire(&mut self) {
        while let Some(&(deadline, key)) = self.deadlines.first() {
            if deadline > self.now {
                break;
            }
            // Each call replaces the deadline, so the loop ends.
            if !self.hide_client(key) && !self.wait_longer(key) {
                self.try_next(key);
            }
        }
        if self.resume_at.is_some_and(|at| at <= self.now) {
            self.resume_at = None;
            self.dial_again();
            let paused = std::mem::take(&mut self.paused).into_iter();
            self.again.extend(paused.map(TokenTarget::Listener));
        }
        if self.next_idle_check <= self.now {
            self.next_idle_check = self.now + IDLE_CHECK;
            self.check_idle();
        }
    }

    /// Ends connections and flows that were idle for too long.
    fn check_idle(&mut self) {
        let now = self.seconds();
        let mut expired = Vec::new();
        for (key, connection) in &mut self.connections {
            let Relayed::Relaying(connection) = connection else {
                continue;
            };
            let idle = now.saturating_sub(connection.active_at);
            let limit = connection.idle_limit().unwrap_or(self.limits.tcp_idle);
            // Both times are whole seconds, so the last bytes may have passed up to a second later than `idle`
            // says.
            if u64::from(idle) > limit.as_secs() {
                expired.push(key);
            } else if idle >= KEEPALIVE_AFTER {
                connection.keep_alive();
            }
        }
        for key in expired {
            self.reset(key);
        }
        self.flows.expire(self.now);
        self.free_ended();
    }

    fn free_ended(&mut self) {
        for key in self.ended.drain(..) {
            self.connections.remove(key);
        }
    }

    /// Executes the waiting commands. Returns whether the worker ends.
    fn obey(&mut self) -> bool {
        let mut needs_review = false;
        loop {
            match self.commands.try_recv() {
                Ok(RelayCommand::Listen(number, mut socket, frontend)) => {
                    let entry = self.listeners.vacant_entry();
                    let token = TokenTarget::Listener(entry.key()).token();
                    let registered =
                        self.poll
                            .registry()
                            .register(&mut socket, token, Interest::READABLE);
                    // Otherwise the socket closes, and the kernel gives its clients to the other
                    // workers.
                    if registered.is_ok() {
                        entry.insert(Listener {
                            number,
                            socket,
                            frontend,
                        });
                    }
                }
                Ok(RelayCommand::Receive(number, socket, frontend)) => {
                    self.flows
                        .listen(number, socket, frontend, self.poll.registry());
                }
                Ok(RelayCommand::Close(number)) => {
                    self.listeners
                        .retain(|_, listener| listener.number != number);
                    self.flows.close(number);
                }
                // One search serves all commands that wait.
                Ok(RelayCommand::Review) => needs_review = true,
                Ok(RelayCommand::Stop(at)) => {
                    self.listeners.clear();
                    // A flow has no end for which to wait.
                    self.flows.clear();
                    self.stop_at = Some(at);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
        if needs_review {
            self.review();
        }
        let has_clients = !self.connections.is_empty() || !self.waiting.is_empty();
        let is_over = |at| !has_clients || at <= self.now;
        self.stop_at.is_some_and(is_over)
    }

    /// Ends the connections and flows of removed endpoints, and those that new routes do not permit.
    fn review(&mut self) {
        let (mut excluded, mut cut) = (Vec::new(), Vec::new());
        for (key, connection) in &mut self.connections {
            let (permit, lease) = match connection {
                Relayed::Relaying(relaying) => (&mut relaying.permit, &mut relaying.lease),
                Relayed::Connecting(waiting) => (&mut waiting.attempt.permit, &mut waiting.lease),
                Relayed::Ended => continue,
            };
            // The route first: the endpoint may be removed only from the pool that the connection leaves. If the new
            // pool lacks it, the connection stays until its own pool lacks it too.
            if permit.review(lease) == Permission::Nothing {
                excluded.push(key);
            } else if lease.is_cut() {
                cut.push(key);
            }
        }
        for key in excluded {
            self.reset(key);
        }
        for key in cut {
            match self.connections.get(key) {
                // No byte has passed yet, so another endpoint can serve this client.
                Some(Relayed::Connecting(_)) => self.try_next(key),
                _ => self.reset(key),
            }
        }
        self.flows.review();
        self.free_ended();
    }

    /// Returns the time in seconds. The type is large enough for 136 years.
    fn seconds(&self) -> u32 {
        u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX)
    }
}

/// Returns the request for a scheduler.
pub(crate) fn request(frontend: SocketAddr, client: SocketAddr, at: Duration) -> Request {
    Request {
        source: client.ip(),
        source_port: client.port(),
        destination: frontend.ip(),
        destination_port: frontend.port(),
        at,
    }
}

/// Returns whether the process or the machine has no descriptor or memory left.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno)
    })
}
