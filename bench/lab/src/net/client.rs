//! Clients, in the calling thread's namespace.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt::socket_error},
};

use super::{Answer, sctp};
use crate::cost::patience;

/// Source ports that take turns.
///
/// IPVS keeps the client's port towards the endpoint, and remembers a connection for minutes after its end. If a
/// client used one port at two frontends with a common endpoint, or at a frontend and at the endpoint itself,
/// the answers to the one would be taken for answers to the other. The kernel chooses equal ports now and then.
struct Ports {
    next: AtomicU16,
    first: u16,
    count: u16,
}

/// The ports of connections and dialogues that stay open. The node ports begin at 30,000.
static LASTING: Ports = Ports::of(11_000, 19_000);

/// The ports of single questions.
static BRIEF: Ports = Ports::of(32_768, 28_000);

impl Ports {
    const fn of(first: u16, count: u16) -> Self {
        Self {
            next: AtomicU16::new(0),
            first,
            count,
        }
    }

    /// Calls `bind` with wildcard addresses of different ports until one is free.
    fn bind<T>(
        &self,
        family: AddressFamily,
        bind: impl Fn(SocketAddr) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let port = self.first + self.next.fetch_add(1, Ordering::Relaxed) % self.count;
            match bind(unspecified(family, port)) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                other => return other,
            }
        }
    }
}

pub(super) fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Returns the wildcard address of `family`.
pub(super) fn unspecified(family: AddressFamily, port: u16) -> SocketAddr {
    let address: IpAddr = if family == AddressFamily::INET6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    (address, port).into()
}

/// Connects a stream socket; fails with `TimedOut` after `patience`.
pub(super) fn connect_within(
    socket: OwnedFd,
    address: SocketAddr,
    patience: Duration,
) -> io::Result<TcpStream> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    if !is_writable_within(&socket, patience)? {
        return Err(ErrorKind::TimedOut.into());
    }
    socket_error(&socket)??;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(TcpStream::from(socket))
}

/// Waits like [`patiently`] until `socket` is connected or has an error. Returns whether it is.
fn is_writable_within(socket: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(patience / WAITS).map_err(io::Error::other)?;
    for _ in 0..WAITS {
        if poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timeout))? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A TCP or SCTP connection that stays open until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    greeting: Answer,
    /// The time limit for an answer.
    limit: Duration,
}

impl Connection {
    pub(super) fn open(address: SocketAddr) -> Result<Self, Answer> {
        Self::open_within(address, PATIENCE)
    }

    pub(super) fn open_within(address: SocketAddr, limit: Duration) -> Result<Self, Answer> {
        Self::open_from(&LASTING, address, limit)
    }

    fn open_from(ports: &Ports, address: SocketAddr, limit: Duration) -> Result<Self, Answer> {
        let family = family(address);
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket =
            socket_with(family, kind, flags, Some(ipproto::TCP)).map_err(io::Error::from)?;
        ports.bind(family, |from| Ok(rustix::net::bind(&socket, &from)?))?;
        Self::over(connect_within(socket, address, patience(limit))?, limit)
    }

    pub(super) fn open_sctp(address: SocketAddr) -> Result<Self, Answer> {
        Self::over(sctp::connect(address, patience(PATIENCE))?, PATIENCE)
    }

    fn over(stream: TcpStream, limit: Duration) -> Result<Self, Answer> {
        let mut connection = Self {
            stream: BufReader::new(stream),
            greeting: Answer::Reset,
            limit,
        };
        connection.greeting = connection.listen();
        match &connection.greeting {
            Answer::Reply { .. } => Ok(connection),
            failure => Err(failure.clone()),
        }
    }

    /// Returns the server's first line, always an [`Answer::Reply`].
    pub fn greeting(&self) -> &Answer {
        &self.greeting
    }

    /// Asks again, on the same connection.
    pub fn ask(&mut self) -> Answer {
        match self.stream.get_mut().write_all(b"?\n") {
            Ok(()) => self.listen(),
            Err(error) => error.into(),
        }
    }

    /// Closes the connection with a reset. Conntrack then deletes its entry after seconds, not
    /// minutes.
    ///
    /// # Panics
    /// If the socket refuses the option `SO_LINGER`.
    pub fn reset(self) {
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(self.stream.get_ref(), linger)
            .expect("a TCP socket has SO_LINGER");
    }

    fn listen(&mut self) -> Answer {
        let mut line = Vec::new();
        let set_timeout = |stream: &mut BufReader<TcpStream>, timeout| {
            stream.get_ref().set_read_timeout(Some(timeout))
        };
        let read = |stream: &mut BufReader<TcpStream>| stream.read_until(b'\n', &mut line);
        match patiently(&mut self.stream, self.limit, set_timeout, read) {
            Ok(0) => Answer::Reset,
            Ok(_) => Answer::parse(&line),
            Err(error) => error.into(),
        }
    }
}

/// Connects to `address` over TCP from the calling thread's namespace and returns the answer.
pub fn ask_tcp(address: SocketAddr) -> Answer {
    ask_tcp_within(address, PATIENCE)
}

/// Like [`ask_tcp`]. The connection and the answer may take `limit` each, scaled by
/// [`patience`](crate::patience).
pub fn ask_tcp_within(address: SocketAddr, limit: Duration) -> Answer {
    greeting(Connection::open_from(&BRIEF, address, limit))
}

/// Connects to `address` over SCTP from one address of the calling thread's namespace and returns the
/// answer.
pub fn ask_sctp(address: SocketAddr) -> Answer {
    greeting(Connection::open_sctp(address))
}

fn greeting(connection: Result<Connection, Answer>) -> Answer {
    match connection {
        Ok(connection) => connection.greeting,
        Err(failure) => failure,
    }
}

/// Sends one UDP datagram to `address` from the calling thread's namespace and returns the answer.
pub fn ask_udp(address: SocketAddr) -> Answer {
    ask_udp_within(address, PATIENCE)
}

/// Like [`ask_udp`]. The answer may take `limit`, scaled by [`patience`](crate::patience).
pub fn ask_udp_within(address: SocketAddr, limit: Duration) -> Answer {
    match BRIEF.bind(family(address), |from| UdpClient::from(from, address)) {
        Ok(mut client) => client.ask_within(limit),
        Err(error) => error.into(),
    }
}

/// A UDP socket that asks one address repeatedly.
#[derive(Debug)]
pub struct UdpClient(UdpSocket);

impl UdpClient {
    /// Returns a socket in the calling thread's namespace, with a port that no other client uses.
    ///
    /// # Errors
    /// If the namespace has no route to `address`.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        LASTING.bind(family(address), |from| Self::from(from, address))
    }

    fn from(from: SocketAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(from)?;
        // Only a connected socket reports ICMP errors.
        socket.connect(address)?;
        Ok(Self(socket))
    }

    /// Sends one datagram and returns the answer.
    pub fn ask(&mut self) -> Answer {
        self.ask_within(PATIENCE)
    }

    /// Sends one datagram and returns the next answer within `limit`, possibly the late answer to
    /// an earlier datagram. `limit` is scaled by [`patience`](crate::patience).
    pub fn ask_within(&mut self, limit: Duration) -> Answer {
        let exchange = || -> io::Result<Answer> {
            self.0.send(b"?\n")?;
            let mut line = [0; 512];
            let length = receive_within(&self.0, &mut line, limit)?;
            Ok(Answer::parse(&line[..length]))
        };
        exchange().unwrap_or_else(Answer::from)
    }
}

/// Receives a datagram and returns its length.
///
/// # Errors
/// [`WouldBlock`](ErrorKind::WouldBlock) if none arrives within `limit`, scaled by
/// [`patience`](crate::patience); the error that ICMP reported.
pub fn receive_within(socket: &UdpSocket, into: &mut [u8], limit: Duration) -> io::Result<usize> {
    let set_timeout = |socket: &mut &UdpSocket, timeout| socket.set_read_timeout(Some(timeout));
    let read = |socket: &mut &UdpSocket| socket.recv(into);
    patiently(&mut { socket }, limit, set_timeout, read)
}

/// The time that a client waits for an answer.
///
/// TCP repeats a lost SYN after one second, so the wait must be longer. It is not much longer,
/// because many tests expect that no answer arrives.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The number of waits into which a client divides its time limit.
///
/// If the host gives the lab no processor for longer than the limit, one wait is over before the server
/// could answer, and the others begin when the lab runs again.
const WAITS: u32 = 20;

/// Reads from `socket`; waits for `limit`, scaled by [`patience`], in [`WAITS`] parts.
fn patiently<S>(
    socket: &mut S,
    limit: Duration,
    set_timeout: impl Fn(&mut S, Duration) -> io::Result<()>,
    mut read: impl FnMut(&mut S) -> io::Result<usize>,
) -> io::Result<usize> {
    set_timeout(socket, patience(limit) / WAITS)?;
    let mut waits = 0;
    loop {
        match read(socket) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && waits + 1 < WAITS => waits += 1,
            other => return other,
        }
    }
}
