//! UDP flows: one per client and frontend.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use slab::Slab;

use crate::RelayLimits;
use crate::answers::WaitingAnswers;
use crate::budget::{Budget, Permission, Permit};
use crate::datagrams::{DatagramBatch, DatagramSocket, MoreDatagrams, Train};
use crate::frontend::SharedFrontend;
use crate::hops::Hops;
use crate::pool::Lease;
use crate::refusal::Refusals;
use crate::tcp::ATTEMPTS;

mod open;

/// The number of batches that are received from a socket before the next socket gets its turn.
const TURNS: usize = 2;

/// The longest datagram that a flow keeps for another endpoint: a frame of Ethernet has no longer one. A client that
/// never gets an answer takes this memory until its flow ends.
const KEPT: usize = 1_500;

/// The datagram sockets of a worker: those of frontends and those of flows.
#[derive(Debug)]
pub(crate) struct UdpFlows {
    sockets: Slab<Socket>,
    /// The flow of each client of each frontend.
    index: HashMap<FlowClient, usize>,
    /// The slot at which the next search for a flow to remove begins.
    hand: usize,
    answers: WaitingAnswers,
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
    UdpFlow(Box<UdpFlow>),
}

#[derive(Debug)]
struct UdpFlow {
    /// Connected to the endpoint, so that the kernel reports the endpoint's errors.
    socket: DatagramSocket,
    lease: Lease,
    permit: Permit,
    from: FlowClient,
    active_at: Duration,
    endpoint: FlowEndpoint,
}

/// What a flow knows of its endpoint.
#[derive(Debug)]
enum FlowEndpoint {
    /// It has not answered yet.
    Untried(Opening),
    Answers,
    /// "Port unreachable" arrived after an answer. The client's next datagram shows whether the endpoint is gone: any
    /// host can send that message, if it guesses the port of a flow that lasts.
    InDoubt,
}

/// What another endpoint needs if the endpoint of a flow refuses its first datagram.
#[derive(Debug)]
struct Opening {
    /// The first datagram; `None` if it is too long.
    first: Option<Box<[u8]>>,
    /// The endpoints that refused it.
    refused: Vec<SocketAddr>,
    /// The hops of the flow's datagrams.
    hops: Hops,
}

/// The worker at the time of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) now: Duration,
}

/// A client of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowClient {
    /// The key of the frontend's socket.
    frontend: usize,
    address: SocketAddr,
}

impl UdpFlows {
    pub(crate) fn new(limits: RelayLimits, budget: Arc<Budget>, token: fn(usize) -> Token) -> Self {
        Self {
            sockets: Slab::new(),
            index: HashMap::new(),
            hand: 0,
            answers: WaitingAnswers::new(),
            refusals: Refusals::default(),
            limits,
            budget,
            token,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    pub(crate) fn listen(
        &mut self,
        number: u64,
        mut socket: UdpSocket,
        shared: Arc<SharedFrontend>,
        registry: &Registry,
    ) {
        let entry = self.sockets.vacant_entry();
        let token = (self.token)(entry.key());
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
    pub(crate) fn receive(
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
            let Some(Socket::Frontend { socket, .. }) = self.sockets.get(key) else {
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
                Err(error) if is_refused(&error) => self.refuse(key, moment),
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
        let known = self.index.get(&from).copied();
        let key = match known {
            Some(key) if !self.is_in_doubt(key) => key,
            _ => {
                let Some(hops) = Hops::after(train.hops) else {
                    self.budget.statistics().refused.add();
                    return None;
                };
                let first = train.first();
                let opening = Opening {
                    first: (first.len() <= KEPT).then(|| first.into()),
                    refused: Vec::new(),
                    hops,
                };
                match known {
                    Some(key) => self.open_again(key, opening),
                    None => self.open(from, moment, opening)?,
                }
            }
        };
        let Some(Socket::UdpFlow(flow)) = self.sockets.get_mut(key) else {
            return None;
        };
        flow.active_at = moment.now;
        Some((key, flow))
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
            let remaining = match batch.receive(&flow.socket) {
                Ok(remaining) => remaining,
                Err(error) if is_refused(&error) => {
                    self.refuse(key, moment);
                    continue;
                }
                // Other ICMP errors may pass, such as an unreachable host while routes change.
                Err(_) => continue,
            };
            let client = flow.from;
            if batch.trains().next().is_some() {
                flow.active_at = moment.now;
                let before = std::mem::replace(&mut flow.endpoint, FlowEndpoint::Answers);
                if matches!(before, FlowEndpoint::Untried(_)) {
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
    pub(crate) fn send_answers(&mut self) {
        let sockets = &self.sockets;
        self.answers.send(|key| match sockets.get(key) {
            Some(Socket::Frontend { socket, .. }) => Some(socket),
            _ => None,
        });
    }

    fn is_in_doubt(&self, key: usize) -> bool {
        let is_in_doubt = |flow: &UdpFlow| matches!(flow.endpoint, FlowEndpoint::InDoubt);
        matches!(self.sockets.get(key), Some(Socket::UdpFlow(flow)) if is_in_doubt(flow))
    }

    /// Treats a flow in doubt as a new one, at the same endpoint.
    fn open_again(&mut self, key: usize, opening: Opening) -> usize {
        if let Some(Socket::UdpFlow(flow)) = self.sockets.get_mut(key) {
            flow.endpoint = FlowEndpoint::Untried(opening);
        }
        key
    }

    /// Handles "port unreachable" for a datagram of a flow.
    fn refuse(&mut self, key: usize, moment: Moment<'_>) {
        let Some(Socket::UdpFlow(flow)) = self.sockets.get_mut(key) else {
            return;
        };
        match flow.endpoint {
            FlowEndpoint::Untried(_) => self.give_up(key, moment),
            FlowEndpoint::Answers | FlowEndpoint::InDoubt => flow.endpoint = FlowEndpoint::InDoubt,
        }
    }

    /// Removes a flow whose endpoint answered "port unreachable" to the datagram that opened it. Another endpoint
    /// gets that datagram.
    fn give_up(&mut self, key: usize, moment: Moment<'_>) {
        let Some(flow) = self.remove(key) else {
            return;
        };
        let endpoint = flow.lease.address();
        flow.lease.fail(moment.now);
        let FlowEndpoint::Untried(mut opening) = flow.endpoint else {
            return;
        };
        opening.refused.push(endpoint);
        // The old flow keeps no descriptor from the new one.
        drop((flow.socket, flow.permit));
        let opened = self.open(flow.from, moment, opening);
        if let Some(Socket::UdpFlow(flow)) = opened.and_then(|key| self.sockets.get(key))
            && let FlowEndpoint::Untried(opening) = &flow.endpoint
            && let Some(first) = &opening.first
        {
            // Its error, if there is one, will be an event.
            let _ = flow.socket.send(first);
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
        Some(*flow)
    }

    /// Removes flows that were idle for too long.
    pub(crate) fn expire(&mut self, now: Duration) {
        let limit = self.limits.udp_idle;
        self.remove_if(|flow| {
            let limit = flow.permit.frontend().handling().idle.unwrap_or(limit);
            flow.active_at + limit <= now
        });
    }

    /// Removes the flows of removed endpoints, and those whose client may no longer use the frontend, or the endpoint.
    pub(crate) fn review(&mut self) {
        self.remove_if(|flow| {
            flow.permit.review(&mut flow.lease) != Permission::Endpoint || flow.lease.is_cut()
        });
    }

    /// Closes the frontend sockets with this number, and their flows.
    pub(crate) fn close(&mut self, closed: u64) {
        let is_closed = |socket: &Socket| matches!(socket, Socket::Frontend { number, .. } if *number == closed);
        let frontends = self.sockets.iter().filter(|(_, socket)| is_closed(socket));
        let frontends: Vec<usize> = frontends.map(|(key, _)| key).collect();
        self.remove_if(|flow| frontends.contains(&flow.from.frontend));
        for key in frontends {
            self.sockets.remove(key);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.sockets.clear();
        self.index.clear();
    }

    fn remove_if(&mut self, mut condition: impl FnMut(&mut UdpFlow) -> bool) {
        let found = self
            .sockets
            .iter_mut()
            .filter_map(|(key, socket)| match socket {
                Socket::UdpFlow(flow) => condition(flow).then_some(key),
                Socket::Frontend { .. } => None,
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
