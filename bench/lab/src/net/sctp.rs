//! SCTP in the style of TCP (RFC 6458 section 4).
//!
//! The system calls are those of a TCP socket, so std's [`TcpStream`] works with an SCTP socket.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt::set_ipv6_v6only,
};

use super::{
    client::{Ports, family, unspecified},
    wait::connect_within,
};

/// Returns an SCTP socket for one address family.
pub(super) fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let socket = socket_with(family, kind, flags, Some(ipproto::SCTP))?;
    if family == AddressFamily::INET6 {
        set_ipv6_v6only(&socket, true)?;
    }
    Ok(socket)
}

/// Connects to `address` from one of `ports` at the one address that routing chooses.
///
/// An unbound socket would send every address of this host to the server.
pub(super) fn connect(
    ports: &Ports,
    address: SocketAddr,
    limit: Duration,
) -> io::Result<TcpStream> {
    let family = family(address);
    let route = UdpSocket::bind(unspecified(family, 0))?;
    route.connect(address)?;

    // The kernel repeats a lost INIT after three seconds by default. The socket copies this value
    // when it is created. In the lab an ICMP error arrives while connect(2) still owns the socket,
    // and `sctp_v4_err` (Linux 7.2) ignores errors then. Only the repeated INIT causes another
    // error.
    fs::write("/proc/sys/net/sctp/rto_initial", REPEATED_AFTER)?;
    let socket = socket(family)?;
    let own = route.local_addr()?.ip();
    ports.bind(family, |any| {
        Ok(rustix::net::bind(
            &socket,
            &SocketAddr::new(own, any.port()),
        )?)
    })?;
    // Without this option the kernel reports an ICMP error only after eight repetitions.
    match address {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
        SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
    }
    connect_within(socket, address, limit)
}

/// The time until the kernel repeats a lost INIT, in milliseconds.
const REPEATED_AFTER: &str = "300";
