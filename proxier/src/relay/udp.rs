//! UDP flows: one per client and frontend.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
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
use super::hops::Hops;
use super::pool::{ConnectionKind, Lease};
use super::recent::{DatagramPlace, RecentDatagrams};
use super::refusal::Refusals;
use super::source;
use super::tcp::ATTEMPTS;
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
    index: HashMap<FlowClient, usize>,
    /// The slot at which the next search for a flow to remove begins.
    hand: usize,
    answers: WaitingAnswers,
    recent: RecentDatagrams,
    refusals: Refusals,
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
    from: FlowClient,
    active_at: Duration,
    /// `None` from the endpoint's first answer on.
    opening: Option<Opening>,
}

/// What another endpoint needs if the endpoint of a flow refuses its first datagram.
#[derive(Debug)]
struct Opening {
    first: DatagramPlace,
    /// The endpoints that refused it.
    refused: Vec<SocketAddr>,
    /// The hops of the flow's datagrams.
    hops: Hops,
}

/// The worker at the time of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment<'a> {
    pub(super) registry: &'a Registry,
    pub(super) now: Duration,
}

/// A client of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowClient {
    /// The key of the frontend's socket.
    frontend: usize,
    address: SocketAddr,
}

impl UdpFlows {
    pub(super) fn new(limits: RelayLimits, budget: Arc<Budget>) -> Self {
        Self {
            sockets: Slab::new(),
            index: HashMap::new(),
            hand: 0,
            answers: WaitingAnswers::new(),
            recent: RecentDatagrams::new(),
            refusals: Refusals::default(),
            limits,
            budget,
            // `listen` replaces it, and no flow exists before.
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
        moment: Moment<'_>,
        batch: &mut DatagramBatch,
    ) -> bool {
        match self.sockets.get(key) {
            Some(Socket::Frontend { .. }) => self.receive_from_clients(key, moment, batch),
            Some(Socket::UdpFlow(_)) => self.receive_from_endpoint(key, moment, batch),
            None => false,
        }
    }

    fn receive_from_clients(
        &mut self,
        key: usize,
        moment: Moment<'_>,
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
                if let Some(address) = train.sender {
                    let frontend = key;
                    self.forward(FlowClient { frontend, address }, moment, &train);
                }
            }
            if remaining == MoreDatagrams::Nothing {
                return false;
            }
        }
        true
    }

    /// Sends a client's datagrams to its endpoint.
    fn forward(&mut self, from: FlowClient, moment: Moment<'_>, train: &Train<'_>) {
        for _ in ATTEMPTS {
            let Some((key, flow)) = self.flow(from, moment, train) else {
                return;
            };
            match train.send(&flow.socket, None) {
                // The error is that of an earlier datagram. This endpoint has not got these.
                Err(error) if is_refused(&error) => self.give_up(key, moment),
                _ => return,
            }
        }
    }

    /// Returns the flow of a client, a new one if it has none. `None` if no endpoint serves it.
    fn flow(
        &mut self,
        from: FlowClient,
        moment: Moment<'_>,
        train: &Train<'_>,
    ) -> Option<(usize, &mut UdpFlow)> {
        let key = match self.index.get(&from) {
            Some(&key) => key,
            None => {
                let first = self.recent.keep(train.first())?;
                let Some(hops) = Hops::after(train.hops) else {
                    self.budget.statistics().refused();
                    return None;
                };
                let refused = Vec::new();
                let opening = Opening {
                    first,
                    refused,
                    hops,
                };
                self.open(from, moment, opening)?
            }
        };
        let Some(Socket::UdpFlow(flow)) = self.sockets.get_mut(key) else {
            return None;
        };
        flow.active_at = moment.now;
        Some((key, flow))
    }

    /// Opens a flow to an endpoint that has not refused it. `None` if no endpoint is left, so that the client's
    /// datagram is dropped.
    fn open(
        &mut self,
        from: FlowClient,
        moment: Moment<'_>,
        mut opening: Opening,
    ) -> Option<usize> {
        let Some(Socket::Frontend { shared, .. }) = self.sockets.get(from.frontend) else {
            return None;
        };
        let (shared, client) = (shared.clone(), from.address);
        if self.index.len() >= self.limits.udp_flows {
            self.evict();
        }
        let canonical = SocketAddr::new(client.ip().to_canonical(), client.port());
        let route = shared.route();
        let pool = route.pool_for(canonical.ip())?;
        let request = request(shared.address(), canonical, moment.now);
        let permit = self.permit(&shared, canonical.ip())?;
        while opening.refused.len() < ATTEMPTS.len()
            && let Some(lease) = pool.pick(&request, &opening.refused, ConnectionKind::Udp)
        {
            let endpoint = lease.address();
            let is_shown = route.shows(canonical.ip(), endpoint.ip(), shared.address().ip());
            let shown = is_shown.then_some(canonical.ip());
            let mut socket = match self.connect(shown, endpoint, opening.hops) {
                Ok(socket) => socket,
                Err(error) if is_exhausted(&error) => return None,
                // For example, no route leads to it.
                Err(_) => {
                    opening.refused.push(endpoint);
                    lease.fail(moment.now);
                    continue;
                }
            };
            let entry = self.sockets.vacant_entry();
            let key = entry.key();
            moment
                .registry
                .register(&mut socket, (self.token)(key), Interest::READABLE)
                .ok()?;
            entry.insert(Socket::UdpFlow(UdpFlow {
                socket: DatagramSocket::connected(socket, endpoint),
                lease,
                permit,
                from,
                active_at: moment.now,
                opening: Some(opening),
            }));
            self.index.insert(from, key);
            return Some(key);
        }
        self.budget.statistics().refused();
        let datagram = self.recent.get(opening.first).unwrap_or_default();
        self.refusals
            .send(shared.address(), client, datagram, moment.now);
        None
    }

    /// Returns a socket that is connected to `endpoint`, from the address `shown` if that is possible.
    fn connect(
        &mut self,
        shown: Option<IpAddr>,
        endpoint: SocketAddr,
        hops: Hops,
    ) -> io::Result<UdpSocket> {
        let open = |shown| source::datagrams(shown, endpoint, hops);
        let socket = match open(shown) {
            Err(error) if is_exhausted(&error) => {
                self.budget.statistics().exhausted();
                self.evict();
                open(shown)
            }
            // `IP_TRANSPARENT` needs a privilege. An endpoint that sees this node is better than
            // none.
            Err(_) if shown.is_some() => {
                self.budget.statistics().hidden();
                open(None)
            }
            other => other,
        }?;
        socket.connect(endpoint)?;
        Ok(socket)
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
        moment: Moment<'_>,
        batch: &mut DatagramBatch,
    ) -> bool {
        for _ in 0..TURNS {
            let Some(Socket::UdpFlow(flow)) = self.sockets.get_mut(key) else {
                return false;
            };
            let remaining = match batch.receive(&mut flow.socket) {
                Ok(remaining) => remaining,
                Err(error) if is_refused(&error) => {
                    self.give_up(key, moment);
                    return false;
                }
                // Other ICMP errors may pass, such as an unreachable host while routes change.
                Err(_) => continue,
            };
            let client = flow.from;
            if batch.trains().next().is_some() {
                flow.active_at = moment.now;
                if flow.opening.take().is_some() {
                    flow.lease.succeed();
                }
            }
            for train in batch.trains() {
                self.answer(client, &train);
            }
            if remaining == MoreDatagrams::Nothing {
                return false;
            }
        }
        true
    }

    /// Sends datagrams of an endpoint to the client, single ones with the next [`UdpFlows::send_answers`].
    fn answer(&mut self, client: FlowClient, train: &Train<'_>) {
        let FlowClient { frontend, address } = client;
        if self.answers.is_full() {
            self.send_answers();
        }
        if let Some(datagram) = train.single() {
            return self.answers.add(frontend, address, datagram);
        }
        // After the answers before it.
        self.send_answers();
        if let Some(Socket::Frontend { socket, .. }) = self.sockets.get(frontend) {
            // A full send buffer drops datagrams, as a full queue on the way does.
            let _ = train.send(socket, Some(address));
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

    /// Removes a flow whose endpoint answered "port unreachable". Another endpoint gets the datagram that opened
    /// it; of a flow that had answers, the client's next datagram.
    fn give_up(&mut self, key: usize, moment: Moment<'_>) {
        let Some(flow) = self.remove(key) else {
            return;
        };
        let endpoint = flow.lease.address();
        flow.lease.fail(moment.now);
        let Some(mut opening) = flow.opening else {
            return;
        };
        opening.refused.push(endpoint);
        let first = opening.first;
        // The old flow keeps no descriptor from the new one.
        drop((flow.socket, flow.permit));
        let opened = self.open(flow.from, moment, opening);
        if let Some(Socket::UdpFlow(flow)) = opened.and_then(|key| self.sockets.get(key))
            && let Some(datagram) = self.recent.get(first)
        {
            // Its error, if there is one, will be an event.
            let _ = flow.socket.send(datagram);
        }
    }

    fn remove(&mut self, key: usize) -> Option<UdpFlow> {
        if !matches!(self.sockets.get(key), Some(Socket::UdpFlow(_))) {
            return None;
        }
        let Socket::UdpFlow(flow) = self.sockets.remove(key) else {
            return None;
        };
        self.index.remove(&flow.from);
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
        self.remove_if(|flow| frontends.contains(&flow.from.frontend));
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

/// Returns whether the endpoint's host answered that no socket listens at the port.
fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}
