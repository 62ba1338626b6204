//! Listening sockets.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use tokio::net::TcpListener;

/// How many connections may wait for `accept`.
const BACKLOG: i32 = 1_024;

/// Listens at an address of a server, as Go's `net.Listen("tcp", ..)` does.
///
/// `[::]` and `0.0.0.0` both mean all addresses of both families. On a kernel without IPv6, `0.0.0.0` means
/// all IPv4 addresses.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return open(address, false);
    }
    let all = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    match open(all, false) {
        // If the port is in use, listening in IPv4 alone would hide the conflict.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse && address.is_ipv4() => {
            open(address, false)
        }
        result => result,
    }
}

/// Listens at an address of one family: `[::]` does not include IPv4.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn listen_in_family(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    open(SocketAddr::new(address, port), true)
}

fn open(address: SocketAddr, is_v6_only: bool) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Without it, a restarted process could not bind while old connections are in TIME_WAIT.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, is_v6_only)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}
