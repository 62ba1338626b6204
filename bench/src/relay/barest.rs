//! The barest relay: epoll, read and write, without limits, schedulers or timeouts. Its cost is the
//! lowest that a relay which copies through user space can have.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::endpoints::{ADDRESSES, DATAGRAMS, ECHO, SOURCE};
use super::poller::{Poller, ready};

/// Relays until the process is killed.
pub(super) fn run(address: Ipv4Addr, workers: usize) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| Barest::start(address).and_then(Barest::run));
        }
    });
    Ok(())
}

/// The sockets of a worker, by descriptor.
struct Barest {
    poller: Poller,
    sockets: Vec<Option<BareSocket>>,
    flows: HashMap<SocketAddr, usize>,
    buffer: Vec<u8>,
    turn: usize,
}

enum BareSocket {
    Listener(TcpListener),
    Half(Half),
    Frontend(UdpSocket),
    /// A flow's socket, the client, and the key of the frontend.
    Flow(UdpSocket, SocketAddr, usize),
}

/// One socket of a connection.
struct Half {
    stream: TcpStream,
    /// The key of the connection's other socket.
    other: usize,
    /// The bytes that this socket has not accepted yet.
    pending: Vec<u8>,
    has_ended: bool,
}

// Edge-triggered and never modified: a connection costs no `epoll_ctl` after its start.
const BOTH: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

impl Barest {
    fn start(address: Ipv4Addr) -> io::Result<Self> {
        let mut barest = Self {
            poller: Poller::new()?,
            sockets: Vec::new(),
            flows: HashMap::new(),
            buffer: vec![0; 256 * 1024],
            turn: 0,
        };
        for port in [ECHO, SOURCE] {
            let listener: TcpListener = shared(SocketType::STREAM, address, port)?.into();
            rustix::net::listen(&listener, 4_096)?;
            let key = key_of(&listener)?;
            barest.poller.add(&listener, key, EventFlags::IN)?;
            barest.put(key, BareSocket::Listener(listener));
        }
        let frontend: UdpSocket = shared(SocketType::DGRAM, address, DATAGRAMS)?.into();
        let key = key_of(&frontend)?;
        barest.poller.add(&frontend, key, EventFlags::IN)?;
        barest.put(key, BareSocket::Frontend(frontend));
        Ok(barest)
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            self.poller.wait(&mut events, Duration::from_secs(3_600))?;
            for event in &events {
                let key = ready(event).key;
                match self.sockets.get(key) {
                    Some(Some(BareSocket::Listener(_))) => self.accept(key)?,
                    Some(Some(BareSocket::Half(half))) => {
                        let other = half.other;
                        if self
                            .pump(key, other)
                            .and_then(|()| self.pump(other, key))
                            .is_err()
                        {
                            self.sockets[key] = None;
                            self.sockets[other] = None;
                        }
                    }
                    Some(Some(BareSocket::Frontend(_))) => self.receive(key)?,
                    Some(Some(BareSocket::Flow(flow, client, frontend))) => {
                        if let (Ok(length), Some(Some(BareSocket::Frontend(frontend)))) =
                            (flow.recv(&mut self.buffer), self.sockets.get(*frontend))
                        {
                            let _ = frontend.send_to(&self.buffer[..length], client);
                        }
                    }
                    Some(None) | None => {}
                }
            }
        }
    }

    fn accept(&mut self, key: usize) -> io::Result<()> {
        let Some(BareSocket::Listener(listener)) = &self.sockets[key] else {
            return Ok(());
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Ok(client) = rustix::net::accept_with(listener, flags) else {
            return Ok(());
        };
        let port = listener.local_addr()?.port();
        let endpoint =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        let address = self.endpoint(port);
        match rustix::net::connect(&endpoint, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let (one, other) = (key_of(&client)?, key_of(&endpoint)?);
        for (socket, key, other) in [(client, one, other), (endpoint, other, one)] {
            sockopt::set_tcp_nodelay(&socket, true)?;
            self.poller.add(&socket, key, BOTH)?;
            let half = Half {
                stream: socket.into(),
                other,
                pending: Vec::new(),
                has_ended: false,
            };
            self.put(key, BareSocket::Half(half));
        }
        Ok(())
    }

    /// Moves bytes from one socket to the other until one of them blocks. An error ends the connection.
    fn pump(&mut self, from: usize, to: usize) -> io::Result<()> {
        let Ok([Some(BareSocket::Half(source)), Some(BareSocket::Half(sink))]) =
            self.sockets.get_disjoint_mut([from, to])
        else {
            return Ok(());
        };
        loop {
            while !sink.pending.is_empty() {
                match sink.stream.write(&sink.pending) {
                    Ok(written) => drop(sink.pending.drain(..written)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            if source.has_ended {
                return Ok(());
            }
            let length = match source.stream.read(&mut self.buffer) {
                Ok(0) if sink.has_ended => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => {
                    source.has_ended = true;
                    return sink.stream.shutdown(Shutdown::Write);
                }
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let written = match sink.stream.write(&self.buffer[..length]) {
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
            sink.pending
                .extend_from_slice(&self.buffer[written..length]);
        }
    }

    fn receive(&mut self, key: usize) -> io::Result<()> {
        let Some(BareSocket::Frontend(frontend)) = &self.sockets[key] else {
            return Ok(());
        };
        let Ok((length, client)) = frontend.recv_from(&mut self.buffer) else {
            return Ok(());
        };
        let flow = match self.flows.get(&client) {
            Some(&flow) => flow,
            None => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(self.endpoint(DATAGRAMS))?;
                let flow = key_of(&socket)?;
                self.poller.add(&socket, flow, EventFlags::IN)?;
                self.put(flow, BareSocket::Flow(socket, client, key));
                self.flows.insert(client, flow);
                flow
            }
        };
        if let Some(BareSocket::Flow(socket, ..)) = &self.sockets[flow] {
            let _ = socket.send(&self.buffer[..length]);
        }
        Ok(())
    }

    /// Returns the endpoint whose turn it is.
    fn endpoint(&mut self, port: u16) -> SocketAddrV4 {
        self.turn += 1;
        SocketAddrV4::new(ADDRESSES[self.turn % ADDRESSES.len()], port)
    }

    fn put(&mut self, key: usize, socket: BareSocket) {
        if self.sockets.len() <= key {
            self.sockets.resize_with(key + 1, || None);
        }
        self.sockets[key] = Some(socket);
    }
}

/// Returns a socket of one worker, bound to an address that all workers share.
fn shared(kind: SocketType, address: Ipv4Addr, port: u16) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(address, port))?;
    Ok(socket)
}

fn key_of(socket: &impl AsRawFd) -> io::Result<usize> {
    usize::try_from(socket.as_raw_fd()).map_err(io::Error::other)
}
