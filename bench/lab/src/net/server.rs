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

use super::sctp;

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
    rustix::net::bind(&socket, &sctp::unspecified(family, port))?;
    rustix::net::listen(&socket, 16)?;
    connections(name, TcpListener::from(socket), stop)
}

/// Serves all clients of `listener` until `stop` is closed.
fn connections(name: &str, listener: TcpListener, stop: &PipeReader) -> io::Result<JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    let (name, stop) = (name.to_owned(), stop.try_clone()?);
    Builder::new().name(name.clone()).spawn(move || {
        let mut clients = Vec::new();
        while wait_for(&listener, &stop) {
            let Ok((stream, _)) = listener.accept() else {
                // The client has closed the connection already.
                continue;
            };
            let (name, stop) = (name.clone(), stop.try_clone());
            clients.push(Builder::new().spawn(move || serve_client(&name, stream, &stop?)));
        }
        for client in clients.into_iter().flatten() {
            // The client reports a broken connection.
            let _broken = client.join();
        }
    })
}

/// Serves one client until it closes the connection.
fn serve_client(name: &str, mut stream: TcpStream, stop: &PipeReader) -> io::Result<()> {
    let line = answer(name, stream.peer_addr()?);
    stream.set_nonblocking(false)?;
    stream.write_all(&line)?;
    let mut received = [0; 512];
    while wait_for(&stream, stop) {
        let length = stream.read(&mut received)?;
        if length == 0 {
            break;
        }
        let questions = received[..length].iter().filter(|&&byte| byte == b'\n');
        stream.write_all(&line.repeat(questions.count()))?;
    }
    Ok(())
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

/// Waits until `socket` is readable; returns `false` if `stop` is closed first.
fn wait_for(socket: &impl AsFd, stop: &PipeReader) -> bool {
    loop {
        let mut watched = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(socket, PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return watched[0].revents().is_empty(),
        }
    }
}
