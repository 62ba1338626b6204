//! Servers that answer with their name and the client's address.

use std::{
    io::{self, IoSlice, IoSliceMut, PipeReader, Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    thread::{Builder, JoinHandle},
};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        AddressFamily, SocketFlags, SocketType, socket_with,
        sockopt::{set_ipv6_freebind, set_ipv6_v6only},
    },
};

use super::{client::unspecified, sctp};

/// Serves TCP `port` in the calling thread's namespace until `stop` is closed at its other end.
pub(super) fn tcp(name: &str, port: u16, stop: &PipeReader) -> io::Result<JoinHandle<()>> {
    // Serves both families: an IPv4 client appears as ::ffff:a.b.c.d.
    connections(
        name,
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?,
        stop,
    )
}

/// Serves SCTP `port` of `family` in the calling thread's namespace until `stop` is closed.
///
/// Each family has its own server. A server for both families would send all addresses of the host to
/// its clients, and packets to these addresses would bypass the service address.
pub(super) fn sctp(
    name: &str,
    family: AddressFamily,
    port: u16,
    stop: &PipeReader,
) -> io::Result<JoinHandle<()>> {
    let socket = sctp::socket(family)?;
    rustix::net::bind(&socket, &unspecified(family, port))?;
    rustix::net::listen(&socket, 16)?;
    connections(name, TcpListener::from(socket), stop)
}

/// Serves all clients of `listener` on one thread until `stop` is closed.
///
/// A thread per client would cost more than the rest of a short connection: on User-Mode Linux with
/// ptrace, starting a thread is expensive.
fn connections(name: &str, listener: TcpListener, stop: &PipeReader) -> io::Result<JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let (name, stop) = (name.to_owned(), stop.try_clone()?);
    Builder::new().name(name.clone()).spawn(move || {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let sockets = clients.iter().map(|client| client.stream.as_fd());
            let mut watched: Vec<_> = [stop.as_fd(), listener.as_fd()]
                .into_iter()
                .chain(sockets)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            // After an interruption no socket is ready, and the loop polls again.
            let _interrupted = poll(&mut watched, None);
            let ready: Vec<_> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            let mut is_ready = ready[2..].iter();
            // A client whose connection ended, or that does not read its answers, is dropped.
            clients.retain_mut(|client| is_ready.next() != Some(&true) || client.serve().is_ok());
            if ready[1] {
                // A client may have closed the connection already.
                clients.extend(listener.accept().and_then(|it| Client::greet(&name, it)));
            }
        }
    })
}

/// A client's connection.
struct Client {
    stream: TcpStream,
    /// The answer to each of its lines.
    line: Vec<u8>,
}

impl Client {
    fn greet(name: &str, (mut stream, address): (TcpStream, SocketAddr)) -> io::Result<Self> {
        let line = answer(name, address);
        stream.set_nonblocking(true)?;
        stream.write_all(&line)?;
        Ok(Self { stream, line })
    }

    /// Answers what was received.
    ///
    /// # Errors
    /// Also if the client has closed the connection.
    fn serve(&mut self) -> io::Result<()> {
        let mut received = [0; 512];
        let length = match self.stream.read(&mut received) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let questions = received[..length].iter().filter(|&&byte| byte == b'\n');
        self.stream.write_all(&self.line.repeat(questions.count()))
    }
}

/// Serves UDP `port` in the calling thread's namespace until `stop` is closed.
pub(super) fn udp(name: &str, port: u16, stop: &PipeReader) -> io::Result<JoinHandle<()>> {
    let v4 = UdpSocket::bind(("0.0.0.0", port))?;
    setsockopt(&v4, sockopt::Ipv4PacketInfo, &true)?;
    let v6 = socket_with(
        AddressFamily::INET6,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    set_ipv6_v6only(&v6, true)?;
    // A service address is local by a route alone. Without this option IPv6 rejects it as a source
    // address.
    set_ipv6_freebind(&v6, true)?;
    rustix::net::bind(&v6, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    setsockopt(&v6, sockopt::Ipv6RecvPacketInfo, &true)?;
    let v6 = UdpSocket::from(v6);

    let (name, stop) = (name.to_owned(), stop.try_clone()?);
    Builder::new().name(name.clone()).spawn(move || {
        loop {
            let mut watched = [stop.as_fd(), v4.as_fd(), v6.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // After an interruption no socket is ready, and the loop polls again.
            let _interrupted = poll(&mut watched, None);
            let [is_over, v4_ready, v6_ready] = watched.map(|fd| !fd.revents().is_empty());
            if is_over {
                return;
            }
            // If sending an answer fails, the client misses a datagram, which UDP allows.
            if v4_ready {
                let _lost = answer_one(&name, &v4);
            }
            if v6_ready {
                let _lost = answer_one(&name, &v6);
            }
        }
    })
}

/// Answers one datagram from the address that it was sent to.
///
/// The routing table alone may choose another address of the host.
fn answer_one(name: &str, socket: &UdpSocket) -> nix::Result<()> {
    let mut question = [0; 512];
    let mut parts = [IoSliceMut::new(&mut question)];
    let mut control = nix::cmsg_space!(nix::libc::in6_pktinfo);
    let fd = socket.as_raw_fd();
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), flags)?;
    let Some(client) = received.address else {
        return Ok(());
    };
    let source = match (client.as_sockaddr_in(), client.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::V4((*v4).into()),
        (None, Some(v6)) => SocketAddr::V6((*v6).into()),
        (None, None) => return Ok(()),
    };
    let line = answer(name, source);
    let parts = [IoSlice::new(&line)];
    for message in received.cmsgs()? {
        let sent = match message {
            ControlMessageOwned::Ipv4PacketInfo(mut info) => {
                // The datagram's destination need not be an address of the device.
                info.ipi_spec_dst = info.ipi_addr;
                info.ipi_ifindex = 0;
                let from = [ControlMessage::Ipv4PacketInfo(&info)];
                sendmsg(fd, &parts, &from, flags, Some(&client))
            }
            ControlMessageOwned::Ipv6PacketInfo(mut info) => {
                // An answer to a link-local address must name the link. Other answers are routed.
                if client
                    .as_sockaddr_in6()
                    .is_some_and(|it| it.scope_id() == 0)
                {
                    info.ipi6_ifindex = 0;
                }
                let from = [ControlMessage::Ipv6PacketInfo(&info)];
                sendmsg(fd, &parts, &from, flags, Some(&client))
            }
            _ => continue,
        };
        return sent.map(drop);
    }
    Ok(())
}

fn answer(name: &str, client: SocketAddr) -> Vec<u8> {
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    format!("{name} {client}\n").into_bytes()
}
