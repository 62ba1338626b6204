//! SCTP in the style of TCP (RFC 6458 section 4).
//!
//! The system calls are those of a TCP socket, so std's [`TcpStream`] works with an SCTP socket.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, ipproto, socket_with,
        sockopt::{set_ipv6_v6only, socket_error},
    },
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

/// Returns the wildcard address of `family`.
pub(super) fn unspecified(family: AddressFamily, port: u16) -> SocketAddr {
    let address: IpAddr = if family == AddressFamily::INET6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    (address, port).into()
}

/// Connects to `address` from the one address that routing chooses.
///
/// An unbound socket would send every address of this host to the server.
pub(super) fn connect(address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let route = UdpSocket::bind(unspecified(family, 0))?;
    route.connect(address)?;

    // The kernel repeats a lost INIT after three seconds by default. The socket copies this value
    // when it is created. In the lab an ICMP error arrives while connect(2) still owns the socket,
    // and `sctp_v4_err` (Linux 7.2) ignores errors then. Only the repeated INIT causes another
    // error.
    fs::write("/proc/sys/net/sctp/rto_initial", REPEATED_AFTER)?;
    let socket = socket(family)?;
    rustix::net::bind(&socket, &SocketAddr::new(route.local_addr()?.ip(), 0))?;
    // Without this option the kernel reports an ICMP error only after eight repetitions.
    match address {
        SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
        SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
    let mut watched = [PollFd::new(&socket, PollFlags::OUT)];
    if poll(&mut watched, Some(&timeout))? == 0 {
        return Err(ErrorKind::TimedOut.into());
    }
    socket_error(&socket)??;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(TcpStream::from(socket))
}

/// The time until the kernel repeats a lost INIT, in milliseconds.
const REPEATED_AFTER: &str = "300";
