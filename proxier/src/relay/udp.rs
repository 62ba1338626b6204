//! UDP flows: one per client and frontend.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use slab::Slab;

use super::RelayLimits;
use super::answers::WaitingAnswers;
use super::budget::{Budget, PER_FLOW, Permit};
use super::datagrams::{DatagramBatch, DatagramSocket, MoreDatagrams, Train};
use super::frontend::SharedFrontend;
use super::pool::{ConnectionKind, Lease};
use super::source;
use super::worker::{is_exhausted, request};

/// The number of batches that are received from a socket before the next socket gets its turn.
const TURNS: usize = 2;

/// If the table is full, the least recent one of this number of arbitrary flows is removed.
const SAMPLES: usize = 8;

/// The datagram sockets of a worker: those of frontends and those of flows.
#[derive(Debug)]
pub(super) struct UdpFlows {
    sockets: Slab<Socket>,
    /// The flow of each client of each frontend.
    index: HashMap<(usize, SocketAddr), usize>,
    /// The slot at which the next search for a flow to remove begins.
    hand: usize,
    answers: WaitingAnswers,
    limits: RelayLimits,
    budget: Arc<Budget>,
    token: fn(usize) -> Token,
}

#[derive(Debug)]
enum Socket {
    Frontend {
        number: u64,
        socket: DatagramSocket,
        shared: Arc<SharedFrontend>,
    },
    UdpFlow(UdpFlow),
}

#[derive(Debug)]
struct UdpFlow {
    /// Connected to the endpoint, so that the kernel reports the endpoint's errors.
    socket: DatagramSocket,
    lease: Lease,
    permit: Permit,
    client: SocketAddr,
    frontend: usize,
    active_at: Duration,
}

impl UdpFlows {
    pub(super) fn new(limits: RelayLimits, budget: Arc<Budget>) -> Self {
        Self {
            sockets: Slab::new(),
            index: HashMap::new(),
            hand: 0,
            answers: WaitingAnswers::new(),
            limits,
            budget,
            token: |_| super::worker::WAKER,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(super) fn listen(
        &mut self,
        number: u64,
        mut socket: UdpSocket,
        shared: Arc<SharedFrontend>,
        registry: &Registry,
        token: fn(usize) -> Token,
    ) {
        self.token = token;
        let entry = self.sockets.vacant_entry();
        let token = token(entry.key());
        if registry
            .register(&mut socket, token, Interest::READABLE)
            .is_ok()
        {
            entry.insert(Socket::Frontend {
                number,
                socket: DatagramSocket::new(socket, shared.address()),
                shared,
            });
        }
    }

    /// Receives from the socket `key`. Returns whether it has more.
    pub(super) fn receive(
        &mut self,
        key: usize,
        registry: &Registry,
        now: Duration,
        batch: &mut DatagramBatch,
    ) -> bool {
        match self.sockets.get(key) {
            Some(Socket::Frontend { .. }) => self.receive_from_clients(key, registry, now, batch),
            Some(Socket::UdpFlow(_)) => self.receive_from_endpoint(key, now, batch),
            None => false,
        }
    }

    fn receive_from_clients(
        &mut self,
        key: usize,
        registry: &Registry,
        now: Duration,
        batch: &mut DatagramBatch,
    ) -> bool {
        for _ in 0..TURNS {
            let Some(Socket::Frontend { socket, .. }) = self.sockets.get_mut(key) else {
                return false;
            };
            let Ok(remaining) = batch.receive(socket) else {
                // An ICMP error about an earlier answer to one client. It affects no other client.
                continue;
            };
            for train in batch.trains() {
                if let Some(client) = train.sender {
                    self.forward(key, client, registry, now, &train);
                }
            }
            if remaining == MoreDatagrams::Nothing {
                return false;
            }
        }
        true
    }

    /// Sends a client's datagrams to its endpoint.
    fn forward(
        &mut self,
        frontend: usize,
        client: SocketAddr,
        registry: &Registry,
        now: Duration,
        train: &Train<'_>,
    ) {
        let flow = match self.index.get(&(frontend, client)) {
            Some(&flow) => Some(flow),
            None => self.open(frontend, client, registry, now),
        };
        let Some(flow) = flow else {
            return;
        };
        let Some(Socket::UdpFlow(entry)) = self.sockets.get_mut(flow) else {
            return;
        };
        entry.active_at = now;
        if let Err(error) = train.send(&entry.socket, None)
            && is_refused(&error)
        {
            self.give_up(flow, now);
        }
    }

    /// Opens the flow of a new client. `None` if no endpoint serves it, so that its datagram is dropped.
    fn open(
        &mut self,
        frontend: usize,
        client: SocketAddr,
        registry: &Registry,
        now: Duration,
    ) -> Option<usize> {
        let Some(Socket::Frontend { shared, .. }) = self.sockets.get(frontend) else {
            return None;
        };
        let shared = shared.clone();
        if self.index.len() >= self.limits.udp_flows {
            self.evict();
        }
        let canonical = SocketAddr::new(client.ip().to_canonical(), client.port());
        let route = shared.route();
        let pool = route.pool_for(canonical.ip())?;
        let request = request(shared.address(), canonical, now);
        let permit = self.permit(&shared, canonical.ip())?;
        let lease = pool.pick(&request, &[], ConnectionKind::Udp)?;
        let endpoint = lease.address();
        let is_shown = route.shows(canonical.ip(), endpoint.ip(), shared.address().ip());
        let shown = is_shown.then_some(canonical.ip());
        let mut socket = match bind(shown, endpoint) {
            Err(error) if is_exhausted(&error) => {
                self.budget.statistics().exhausted();
                self.evict();
                bind(shown, endpoint)
            }
            Err(_) if is_shown => {
                self.budget.statistics().hidden();
                bind(None, endpoint)
            }
            other => other,
        }
        .ok()?;
        socket.connect(lease.address()).ok()?;
        let entry = self.sockets.vacant_entry();
        let key = entry.key();
        registry
            .register(&mut socket, (self.token)(key), Interest::READABLE)
            .ok()?;
        entry.insert(Socket::UdpFlow(UdpFlow {
            socket: DatagramSocket::new(socket, lease.address()),
            lease,
            permit,
            client,
            frontend,
            active_at: now,
        }));
        self.index.insert((frontend, client), key);
        Some(key)
    }

    /// Takes a descriptor for a flow, from another flow if none is left.
    fn permit(&mut self, frontend: &Arc<SharedFrontend>, client: IpAddr) -> Option<Permit> {
        let budget = self.budget.clone();
        let take = || budget.admit(frontend, client, PER_FLOW);
        take().or_else(|| {
            budget.statistics().over_share();
            self.evict();
            take()
        })
    }

    fn receive_from_endpoint(
        &mut self,
        key: usize,
        now: Duration,
        batch: &mut DatagramBatch,
    ) -> bool {
        for _ in 0..TURNS {
            let Some(Socket::UdpFlow(flow)) = self.sockets.get_mut(key) else {
                return false;
            };
            let remaining = match batch.receive(&mut flow.socket) {
                Ok(remaining) => remaining,
                Err(error) if is_refused(&error) => {
                    self.give_up(key, now);
                    return false;
                }
                Err(_) => continue,
            };
            flow.active_at = now;
            let (client, frontend) = (flow.client, flow.frontend);
            for train in batch.trains() {
                self.answer(frontend, client, &train);
            }
            if remaining == MoreDatagrams::Nothing {
                return false;
            }
        }
        true
    }

    /// Sends datagrams of an endpoint to the client, single ones with the next [`UdpFlows::send_answers`].
    fn answer(&mut self, frontend: usize, client: SocketAddr, train: &Train<'_>) {
        if self.answers.is_full() {
            self.send_answers();
        }
        if let Some(datagram) = train.single() {
            return self.answers.add(frontend, client, datagram);
        }
        // After the answers before it.
        self.send_answers();
        if let Some(Socket::Frontend { socket, .. }) = self.sockets.get(frontend) {
            // A full send buffer drops datagrams, as a full queue on the way does.
            let _ = train.send(socket, Some(client));
        }
    }

    /// Sends the answers that wait.
    pub(super) fn send_answers(&mut self) {
        let sockets = &self.sockets;
        self.answers.send(|key| match sockets.get(key) {
            Some(Socket::Frontend { socket, .. }) => Some(socket),
            _ => None,
        });
    }

    /// Removes a flow whose endpoint answered "port unreachable". The client's next datagram opens another one.
    fn give_up(&mut self, key: usize, now: Duration) {
        if let Some(flow) = self.remove(key) {
            flow.lease.fail(now);
        }
    }

    fn remove(&mut self, key: usize) -> Option<UdpFlow> {
        if !matches!(self.sockets.get(key), Some(Socket::UdpFlow(_))) {
            return None;
        }
        let Socket::UdpFlow(flow) = self.sockets.remove(key) else {
            return None;
        };
        self.index.remove(&(flow.frontend, flow.client));
        Some(flow)
    }

    /// Removes the least recent of a few flows. A list ordered by time would change with every datagram.
    fn evict(&mut self) {
        let slots = self.sockets.capacity();
        let mut candidates: Vec<(Duration, usize)> = Vec::with_capacity(SAMPLES);
        for _ in 0..slots {
            self.hand = (self.hand + 1) % slots.max(1);
            if let Some(Socket::UdpFlow(flow)) = self.sockets.get(self.hand) {
                candidates.push((flow.active_at, self.hand));
            }
            if candidates.len() == SAMPLES {
                break;
            }
        }
        if let Some(&(_, key)) = candidates.iter().min() {
            self.remove(key);
        }
    }

    /// Removes flows that were idle for too long.
    pub(super) fn expire(&mut self, now: Duration) {
        let limit = self.limits.udp_idle;
        self.remove_if(|flow| {
            let limit = flow.permit.frontend().handling().idle.unwrap_or(limit);
            flow.active_at + limit <= now
        });
    }

    /// Removes the flows of removed endpoints.
    pub(super) fn cut(&mut self) {
        self.remove_if(|flow| flow.lease.is_cut());
    }

    /// Closes the frontend sockets with this number, and their flows.
    pub(super) fn close(&mut self, closed: u64) {
        let is_closed = |socket: &Socket| matches!(socket, Socket::Frontend { number, .. } if *number == closed);
        let frontends = self.sockets.iter().filter(|(_, socket)| is_closed(socket));
        let frontends: Vec<usize> = frontends.map(|(key, _)| key).collect();
        self.remove_if(|flow| frontends.contains(&flow.frontend));
        for key in frontends {
            self.sockets.remove(key);
        }
    }

    pub(super) fn clear(&mut self) {
        self.sockets.clear();
        self.index.clear();
    }

    fn remove_if(&mut self, mut condition: impl FnMut(&UdpFlow) -> bool) {
        let found = self
            .sockets
            .iter()
            .filter_map(|(key, socket)| match socket {
                Socket::UdpFlow(flow) if condition(flow) => Some(key),
                _ => None,
            });
        for key in found.collect::<Vec<_>>() {
            self.remove(key);
        }
    }
}

/// Returns a socket for datagrams to `endpoint`, from the address of `client` if there is one.
fn bind(client: Option<IpAddr>, endpoint: SocketAddr) -> io::Result<UdpSocket> {
    match (client, endpoint) {
        (Some(client), _) => source::datagrams(client),
        (None, SocketAddr::V4(_)) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0).into()),
        (None, SocketAddr::V6(_)) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0).into()),
    }
}

/// Returns whether the endpoint's host answered that no socket listens at the port.
fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
