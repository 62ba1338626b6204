//! A TCP connection: the client's socket, the endpoint's socket, and both directions between them.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use net::SourceAddress;
use socket2::{SockRef, TcpKeepalive};

use crate::budget::Permit;
use crate::frontend::{Route, SharedFrontend};
use crate::hops::Hops;
use crate::pipe::{Pipe, Progress};
use crate::pool::Lease;
use crate::proxy_header;
use crate::transit::Transit;

/// How long each attempt to connect may take. A client of a Service waits 3.75 s at most, as in the
/// userspace mode of early kube-proxies (`EndpointDialTimeouts` in `pkg/proxy/userspace/proxysocket.go`).
pub(crate) const ATTEMPTS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// The sockets of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Endpoint,
}

/// The readiness that an event reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(crate) can_read: bool,
    pub(crate) can_write: bool,
    pub(crate) is_closing: bool,
}

/// What the worker does after an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterEvent {
    /// Wait for the next event.
    Wait,
    /// Continue with this connection after all others had their turn.
    Again,
    /// Both directions have ended.
    Finished,
    /// A socket failed: reset both.
    Reset,
}

/// A client that needs an endpoint.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) frontend: Arc<SharedFrontend>,
    pub(crate) client: TcpStream,
    pub(crate) client_address: SocketAddr,
    pub(crate) permit: Permit,
    /// The endpoints that were chosen so far.
    pub(crate) tried: Vec<SocketAddr>,
    /// The hops of the connection to an endpoint.
    pub(crate) hops: Hops,
    /// The source address of the next connection to an endpoint, if that can be chosen.
    pub(crate) source: SourceAddress,
}

impl Attempt {
    /// Returns the client's address if `endpoint` sees it.
    pub(crate) fn shown_client(&self, route: &Route, endpoint: SocketAddr) -> Option<IpAddr> {
        let (client, frontend) = (self.client_address.ip(), self.frontend.address().ip());
        let is_shown = || route.shows(client, endpoint.ip(), frontend);
        (self.source == SourceAddress::Client && is_shown()).then_some(client)
    }
}

/// A connection to an endpoint that did not answer yet.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) attempt: Attempt,
    pub(crate) endpoint: TcpStream,
    pub(crate) lease: Lease,
    /// The source address of this connection.
    pub(crate) source: SourceAddress,
    pub(crate) deadline: Duration,
}

/// A connection whose endpoint has accepted.
#[derive(Debug)]
pub(crate) struct Relaying {
    client: TcpStream,
    endpoint: TcpStream,
    pub(crate) lease: Lease,
    pub(crate) permit: Permit,
    up: Pipe,
    down: Pipe,
    /// The time of the last bytes, in seconds since the start of the relay.
    pub(crate) active_at: u32,
    has_nodelay: bool,
    has_keepalive: bool,
}

impl Relaying {
    /// Begins to relay. The client's socket is registered only now: while the endpoint connects, its
    /// events would wake the worker for nothing.
    pub(crate) fn begin(
        connecting: Connecting,
        registry: &Registry,
        token: Token,
        now: u32,
    ) -> io::Result<Self> {
        let Connecting {
            attempt:
                Attempt {
                    mut client,
                    client_address,
                    permit,
                    ..
                },
            endpoint,
            lease,
            ..
        } = connecting;
        registry.register(&mut client, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            client,
            endpoint,
            lease,
            up: match permit.frontend().handling().proxy_protocol {
                Some(version) => Pipe::beginning_with(proxy_header::encode(
                    version,
                    client_address,
                    permit.frontend().address(),
                )),
                None => Pipe::new(),
            },
            permit,
            down: Pipe::new(),
            active_at: now,
            has_nodelay: false,
            has_keepalive: false,
        })
    }

    /// Returns the length of the PROXY header, which the endpoint still lacks.
    pub(crate) fn header(&self) -> usize {
        self.up.held()
    }

    /// Drops the bytes that wait for the sockets.
    pub(crate) fn discard(&mut self, transit: &mut Transit) {
        self.up.discard(transit);
        self.down.discard(transit);
    }

    /// Returns the idle timeout of its Service.
    pub(crate) fn idle_limit(&self) -> Option<Duration> {
        self.permit.frontend().handling().idle
    }

    /// Records an event of `side`.
    pub(crate) fn note(&mut self, side: Side, ready: Readiness) {
        let (from, to) = match side {
            Side::Client => (&mut self.up, &mut self.down),
            Side::Endpoint => (&mut self.down, &mut self.up),
        };
        from.source_is_ready |= ready.can_read;
        from.is_closing |= ready.is_closing;
        to.sink_is_ready |= ready.can_write;
    }

    /// Moves bytes in both directions.
    pub(crate) fn pump(&mut self, transit: &mut Transit, now: u32) -> AfterEvent {
        self.active_at = now;
        match (
            self.pump_one(Side::Client, transit),
            self.pump_one(Side::Endpoint, transit),
        ) {
            (Ok(up), Ok(down)) => match (up, down) {
                _ if self.up.is_done && self.down.is_done => AfterEvent::Finished,
                (Progress::Yielded, _) | (_, Progress::Yielded) => AfterEvent::Again,
                _ => AfterEvent::Wait,
            },
            _ => AfterEvent::Reset,
        }
    }

    fn pump_one(&mut self, from: Side, transit: &mut Transit) -> io::Result<Progress> {
        let (source, sink, pipe, opposite_is_done) = match from {
            Side::Client => (
                &self.client,
                &self.endpoint,
                &mut self.up,
                self.down.is_done,
            ),
            Side::Endpoint => (
                &self.endpoint,
                &self.client,
                &mut self.down,
                self.up.is_done,
            ),
        };
        if pipe.is_done {
            return Ok(Progress::Ended);
        }
        let flow = pipe.pump(source, sink, transit)?;
        // An accepted socket inherits the option from its listener, a connected one does not. Set after the second
        // write, it sends what that write left, and short connections need no system call.
        if from == Side::Client && !self.has_nodelay && pipe.needs_nodelay() {
            self.has_nodelay = true;
            sink.set_nodelay(true)?;
        }
        if flow == Progress::Ended {
            pipe.is_done = true;
            // If both directions have ended, closing the sockets sends the FIN, which saves a system call.
            if !opposite_is_done {
                sink.shutdown(Shutdown::Write)?;
                self.lease.half_close();
            }
        }
        Ok(flow)
    }

    /// Resets both sockets, as the kernel does with the connections of a removed endpoint.
    pub(crate) fn reset(self) {
        reset(&self.client);
        reset(&self.endpoint);
    }

    /// Makes the kernel probe both sides, so that a dead one ends the connection.
    ///
    /// The worker calls it when the connection becomes idle, so that short connections need no system call.
    pub(crate) fn keep_alive(&mut self) {
        if std::mem::replace(&mut self.has_keepalive, true) {
            return;
        }
        // A dead side is found after two minutes, long before the idle timeout of 15.
        let probes = TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(15))
            .with_retries(4);
        for socket in [&self.client, &self.endpoint] {
            // A socket that refuses the option is about to fail anyway.
            let _ = SockRef::from(socket).set_tcp_keepalive(&probes);
        }
    }
}

/// Makes closing the socket send a reset instead of a FIN.
pub(crate) fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}
