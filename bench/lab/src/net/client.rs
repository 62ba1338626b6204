//! Clients, in the calling thread's namespace.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::{
    Answer, sctp,
    wait::{PatientStream, connect_within, receive_within},
};

/// Source ports that take turns.
///
/// IPVS keeps the client's port towards the endpoint, and remembers a connection for minutes after its end. If a
/// client used one port at two frontends with a common endpoint, or at a frontend and at the endpoint itself,
/// the answers to the one would be taken for answers to the other. The kernel chooses equal ports now and then.
pub(super) struct Ports {
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
    pub(super) fn bind<T>(
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

/// A TCP or SCTP connection that stays open until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<PatientStream>,
    greeting: Answer,
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
        Self::over(connect_within(socket, address, limit)?, limit)
    }

    pub(super) fn open_sctp(address: SocketAddr) -> Result<Self, Answer> {
        Self::open_sctp_from(&LASTING, address)
    }

    fn open_sctp_from(ports: &Ports, address: SocketAddr) -> Result<Self, Answer> {
        Self::over(sctp::connect(ports, address, PATIENCE)?, PATIENCE)
    }

    fn over(stream: TcpStream, limit: Duration) -> Result<Self, Answer> {
        let mut connection = Self {
            stream: BufReader::new(PatientStream::new(stream, limit)),
            greeting: Answer::Reset,
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
        rustix::net::sockopt::set_socket_linger(self.stream.get_ref().as_ref(), linger)
            .expect("a TCP socket has SO_LINGER");
    }

    fn listen(&mut self) -> Answer {
        let mut line = Vec::new();
        match self.stream.read_until(b'\n', &mut line) {
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
    greeting(Connection::open_sctp_from(&BRIEF, address))
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
            let (length, _) = receive_within(&self.0, &mut line, limit)?;
            Ok(Answer::parse(&line[..length]))
        };
        exchange().unwrap_or_else(Answer::from)
    }
}

/// The time that a client waits for an answer.
///
/// TCP repeats a lost SYN after one second, so the wait must be longer. It is not much longer,
/// because many tests expect that no answer arrives.
const PATIENCE: Duration = Duration::from_millis(1500);
