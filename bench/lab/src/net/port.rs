//! Ports of the loopback device for servers that a test starts later, or never.
//!
//! Two tests must not get the same port, and no client or server that lets the kernel choose must take it
//! meanwhile. So these ports are below the kernel's default range of ephemeral ports (ip(7),
//! `ip_local_port_range`), and a process holds each until it ends.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
    process,
    sync::Mutex,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType, bind, socket, sockopt::set_ipv6_v6only},
};

use crate::held_name::HeldName;

/// Above the ports of Kubernetes' programs, below node ports and ephemeral ports.
const PORTS: Range<u16> = 12_000..30_000;

/// The ports of this process.
static HELD: Mutex<Vec<HeldName>> = Mutex::new(Vec::new());

/// Returns a port that no socket has, of TCP or UDP, at any address, and that no other call returns, of this
/// or of another process, as long as this process runs.
///
/// # Panics
/// If there is none.
pub fn unused_port() -> u16 {
    let mut held = HELD.lock().unwrap_or_else(|error| error.into_inner());
    // Processes begin at different ports, so a port rests before it is used again.
    let count = usize::from(PORTS.end - PORTS.start);
    let first = (process::id() as usize * 61 + held.len()) % count;
    let mut ports = PORTS.cycle().skip(first).take(count);
    let found = ports.find_map(|port| {
        let holder = hold(port)?;
        is_unused(port).then_some((port, holder))
    });
    let Some((port, holder)) = found else {
        panic!("no port of {PORTS:?} is unused");
    };
    held.push(holder);
    port
}

/// Takes the name of a port, unless a process has it.
fn hold(port: u16) -> Option<HeldName> {
    HeldName::take(&format!("ipvs-proxier test port {port}"))
}

fn is_unused(port: u16) -> bool {
    let addresses = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ];
    addresses.iter().all(|address| {
        let is_taken = |kind| bind_alone(address, kind) == Err(Errno::ADDRINUSE);
        !is_taken(SocketType::STREAM) && !is_taken(SocketType::DGRAM)
    })
}

/// Binds a socket for a moment, without the option that lets it share the port with closing connections.
fn bind_alone(address: &SocketAddr, kind: SocketType) -> Result<(), Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket(family, kind, None)?;
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, address)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn no_port_is_returned_twice_or_while_a_socket_has_it() {
        let mut seen = vec![unused_port()];
        for _ in 0..100 {
            // The next ports, each with a socket of one kind at one address.
            let last = seen[seen.len() - 1];
            // Another process may have a port, and release it meanwhile.
            let streams = [
                TcpListener::bind(("127.9.8.7", last + 1)).ok(),
                TcpListener::bind(("127.0.0.1", last + 2)).ok(),
            ];
            let datagrams = UdpSocket::bind(("127.0.0.1", last + 3)).ok();
            let streams = streams.iter().flatten().map(TcpListener::local_addr);
            let taken = streams.chain(datagrams.iter().map(UdpSocket::local_addr));
            let port = unused_port();
            for address in taken {
                assert_ne!(address.unwrap().port(), port, "after {last}");
            }
            assert!(!seen.contains(&port), "{port} of {seen:?}");
            seen.push(port);
        }
        for port in seen {
            assert!(hold(port).is_none(), "another process can get {port}");
        }
    }
}
