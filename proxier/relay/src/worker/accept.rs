//! From an accepted client to a connection with an endpoint.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::Interest;
use mio::net::TcpStream;
use net::SourceAddress;

use super::{ACCEPTS, EXHAUSTION_PAUSE, Relayed, TokenTarget, Worker, is_exhausted, request};
use crate::Transport;
use crate::budget::PER_CONNECTION;
use crate::frontend::SharedFrontend;
use crate::hops::Hops;
use crate::source;
use crate::tcp::{ATTEMPTS, Attempt, Connecting, Readiness, Relaying, Side, reset};

impl Worker {
    pub(super) fn accept(&mut self, key: usize) {
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get(key) else {
                return;
            };
            if !self.budget.has_room(&listener.frontend) {
                // The clients wait in the kernel's queue. Other frontends continue.
                self.budget.statistics().held_back.add();
                return self.pause(key);
            }
            if !self.waiting.is_empty() {
                self.budget.statistics().exhausted.add();
                return self.pause(key);
            }
            match listener.socket.accept() {
                Ok((client, address)) => {
                    let frontend = listener.frontend.clone();
                    self.on_accept(frontend, client, address);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_exhausted(&error) => {
                    self.budget.statistics().exhausted.add();
                    return self.pause(key);
                }
                // The client gave up before it was accepted (ECONNABORTED).
                Err(_) => {}
            }
        }
        // More clients may wait, and the kernel reports them only once.
        self.again.push(TokenTarget::Listener(key));
    }

    /// Stops accepting at a listener for a while.
    fn pause(&mut self, key: usize) {
        self.resume_later();
        if !self.paused.contains(&key) {
            self.paused.push(key);
        }
    }

    fn resume_later(&mut self) {
        self.resume_at.get_or_insert(self.now + EXHAUSTION_PAUSE);
    }

    /// Connects clients that waited for a descriptor.
    pub(super) fn dial_again(&mut self) {
        for attempt in std::mem::take(&mut self.waiting) {
            self.dial(attempt);
        }
    }

    /// Keeps a client until a descriptor may be free. `endpoint`, which was chosen for it, is not at fault.
    fn dial_later(&mut self, mut attempt: Attempt, endpoint: SocketAddr) {
        self.budget.statistics().exhausted.add();
        attempt.tried.retain(|&tried| tried != endpoint);
        self.waiting.push(attempt);
        self.resume_later();
    }

    fn on_accept(&mut self, frontend: Arc<SharedFrontend>, client: TcpStream, address: SocketAddr) {
        let client_address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let Some(hops) = Hops::after_client(&client, address) else {
            self.budget.statistics().refused.add();
            return reset(&client);
        };
        let permit = self
            .budget
            .reserve_accepted(&frontend, client_address.ip(), PER_CONNECTION);
        let Some(permit) = permit else {
            self.budget.statistics().over_share.add();
            return reset(&client);
        };
        self.dial(Attempt {
            frontend,
            client,
            client_address,
            permit,
            tried: Vec::new(),
            hops,
            source: SourceAddress::Client,
        });
    }

    /// Begins to connect to an endpoint that was not tried yet. If none is left, or the client may not
    /// connect, resets the client.
    fn dial(&mut self, mut attempt: Attempt) {
        let route = attempt.frontend.route();
        let pool = route.pool_for(attempt.client_address.ip());
        let request = request(attempt.frontend.address(), attempt.client_address, self.now);
        while let Some(&patience) = ATTEMPTS.get(attempt.tried.len()) {
            let lease = pool.and_then(|pool| pool.pick(&request, &attempt.tried, Transport::Tcp));
            let Some(lease) = lease else {
                break;
            };
            attempt.tried.push(lease.address());
            let client = attempt.shown_client(&route, lease.address());
            match self.connect(lease.address(), client, attempt.hops) {
                Ok((endpoint, source)) => {
                    let deadline = self.now + patience;
                    return self.wait_for_endpoint(Connecting {
                        attempt,
                        endpoint,
                        source,
                        lease,
                        deadline,
                    });
                }
                Err(error) if is_exhausted(&error) => {
                    return self.dial_later(attempt, lease.address());
                }
                Err(_) => lease.fail(self.now),
            }
        }
        self.budget.statistics().refused.add();
        reset(&attempt.client);
    }

    /// Begins to connect to an endpoint, from the address of `client` if that is possible.
    fn connect(
        &self,
        endpoint: SocketAddr,
        client: Option<IpAddr>,
        hops: Hops,
    ) -> io::Result<(TcpStream, SourceAddress)> {
        if client.is_some() {
            match source::connect(client, endpoint, hops) {
                Ok(stream) => return Ok((stream, SourceAddress::Client)),
                Err(error) if is_exhausted(&error) => return Err(error),
                Err(_) => self.budget.statistics().hidden.add(),
            }
        }
        let stream = source::connect(None, endpoint, hops)?;
        Ok((stream, SourceAddress::Node))
    }

    fn wait_for_endpoint(&mut self, mut connecting: Connecting) {
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let token = TokenTarget::Side(Side::Endpoint, key).token();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        if registry
            .register(&mut connecting.endpoint, token, interest)
            .is_err()
        {
            return reset(&connecting.attempt.client);
        }
        self.deadlines.insert((connecting.deadline, key));
        entry.insert(Relayed::Connecting(connecting));
    }

    /// Begins to relay, because the endpoint accepted the connection. The event may report its first bytes too.
    pub(super) fn connected(&mut self, key: usize, ready: Readiness) {
        let seconds = self.seconds();
        let Some(connecting) = self.take_connecting(key) else {
            return;
        };
        connecting.lease.succeed();
        let token = TokenTarget::Side(Side::Client, key).token();
        match Relaying::begin(connecting, self.poll.registry(), token, seconds) {
            Ok(mut relaying) => {
                self.budget.statistics().connected.add();
                relaying.note(Side::Endpoint, ready);
                let header = relaying.header();
                self.transit.count(0, header);
                self.connections[key] = Relayed::Relaying(relaying);
                // Otherwise the first event of the client's socket does it.
                if ready.can_read || header > 0 {
                    self.pump(key);
                }
            }
            Err(_) => self.ended.push(key),
        }
    }

    /// Tries another endpoint, because this one did not accept the connection.
    pub(super) fn try_next(&mut self, key: usize) {
        if let Some(connecting) = self.take_connecting(key) {
            self.ended.push(key);
            connecting.lease.fail(self.now);
            self.dial(connecting.attempt);
        }
    }

    /// Tries an endpoint that did not answer to the client's address from this node's. Returns whether it did.
    ///
    /// The answers of an endpoint may not pass through this node even if it is local: a bridge leads them to a
    /// client at the same bridge.
    pub(super) fn hide_client(&mut self, key: usize) -> bool {
        let Some(Relayed::Connecting(connecting)) = self.connections.get(key) else {
            return false;
        };
        if connecting.source == SourceAddress::Node {
            return false;
        }
        let Some(mut connecting) = self.take_connecting(key) else {
            return false;
        };
        self.ended.push(key);
        self.budget.statistics().hidden.add();
        connecting.attempt.source = SourceAddress::Node;
        let hops = connecting.attempt.hops;
        match self.connect(connecting.lease.address(), None, hops) {
            Ok((endpoint, source)) => self.wait_for_endpoint(Connecting {
                endpoint,
                source,
                deadline: self.now + ATTEMPTS[0],
                ..connecting
            }),
            Err(error) if is_exhausted(&error) => {
                self.dial_later(connecting.attempt, connecting.lease.address());
            }
            Err(_) => {
                connecting.lease.fail(self.now);
                self.dial(connecting.attempt);
            }
        }
        true
    }

    /// If no other endpoint is left, continues to wait for this one, for as long as attempts with others would
    /// take: the kernel repeats a lost SYN only after a second. Returns whether it continues.
    fn extend(connecting: &mut Connecting, now: Duration) -> bool {
        let tried = &mut connecting.attempt.tried;
        let Some(&patience) = ATTEMPTS.get(tried.len()) else {
            return false;
        };
        if connecting.lease.pool().has_other(tried) {
            return false;
        }
        tried.push(connecting.lease.address());
        connecting.deadline = now + patience;
        true
    }

    /// Gives a connection whose deadline is over a later one if no other endpoint is left. Returns whether it
    /// did.
    pub(super) fn wait_longer(&mut self, key: usize) -> bool {
        let Some(Relayed::Connecting(connecting)) = self.connections.get_mut(key) else {
            return false;
        };
        let before = connecting.deadline;
        let is_longer = Self::extend(connecting, self.now);
        if is_longer {
            self.deadlines.remove(&(before, key));
            self.deadlines.insert((connecting.deadline, key));
        }
        is_longer
    }

    /// Removes a connection whose endpoint has not accepted yet. Its key stays in use.
    fn take_connecting(&mut self, key: usize) -> Option<Connecting> {
        let connection = self.connections.get_mut(key)?;
        if !matches!(connection, Relayed::Connecting(_)) {
            return None;
        }
        let Relayed::Connecting(connecting) = std::mem::replace(connection, Relayed::Ended) else {
            return None;
        };
        self.deadlines.remove(&(connecting.deadline, key));
        Some(connecting)
    }
}
