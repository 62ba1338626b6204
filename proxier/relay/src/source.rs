//! The source address of connections to endpoints.
//!
//! An endpoint answers to the address that it sees. If that is the client's, the answer must pass through this
//! node, where packet rules hand it to the relay's socket. So only endpoints of this node see clients' addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};

use mio::net::{TcpStream, UdpSocket};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{IpBindAddressNoPort, IpTransparent};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::hops::Hops;

/// The addresses that decide whether an endpoint's answers to a client pass through this node.
#[derive(Debug, Default)]
pub struct LocalAnswers(RwLock<AnswerAddresses>);

#[derive(Debug, Default)]
struct AnswerAddresses {
    own: BTreeSet<IpAddr>,
    endpoints: BTreeSet<IpAddr>,
}

impl LocalAnswers {
    /// Replaces the addresses of this node.
    pub fn set_own(&self, addresses: BTreeSet<IpAddr>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).own = addresses;
    }

    /// Adds these endpoints of this node.
    pub fn add(&self, endpoints: impl IntoIterator<Item = IpAddr>) {
        let mut addresses = self.0.write().unwrap_or_else(PoisonError::into_inner);
        addresses.endpoints.extend(endpoints);
    }

    /// Removes an endpoint.
    pub fn remove(&self, endpoint: &IpAddr) {
        let mut addresses = self.0.write().unwrap_or_else(PoisonError::into_inner);
        addresses.endpoints.remove(endpoint);
    }

    /// Returns whether the answers of `endpoint` to `client` pass through this node.
    ///
    /// The answers of a process of this node leave it, and those to a process of this node never arrive at its
    /// network. An endpoint that is its own client answers itself.
    pub(crate) fn pass(&self, endpoint: IpAddr, client: IpAddr) -> bool {
        let addresses = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let is_of_node =
            |address: IpAddr| address.is_loopback() || addresses.own.contains(&address);
        addresses.endpoints.contains(&endpoint)
            && endpoint != client
            && ![endpoint, client].into_iter().any(is_of_node)
    }
}

/// Begins to connect to `endpoint`, from the address of `client` if there is one.
pub(crate) fn connect(
    client: Option<IpAddr>,
    endpoint: SocketAddr,
    hops: Hops,
) -> io::Result<TcpStream> {
    let socket = open(client, endpoint, Type::STREAM, Protocol::TCP)?;
    // Before the first packet.
    hops.limit(&socket, endpoint)?;
    match socket.connect(&endpoint.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => Err(error),
        _ => Ok(TcpStream::from_std(socket.into())),
    }
}

/// Returns a UDP socket for `endpoint`, which sends from the address of `client` if there is one.
pub(crate) fn datagrams(
    client: Option<IpAddr>,
    endpoint: SocketAddr,
    hops: Hops,
) -> io::Result<UdpSocket> {
    let socket = open(client, endpoint, Type::DGRAM, Protocol::UDP)?;
    hops.limit(&socket, endpoint)?;
    Ok(UdpSocket::from_std(socket.into()))
}

fn open(
    client: Option<IpAddr>,
    endpoint: SocketAddr,
    kind: Type,
    protocol: Protocol,
) -> io::Result<Socket> {
    let domain = Domain::for_address(endpoint);
    let socket = Socket::new(domain, kind.nonblocking(), Some(protocol))?;
    let Some(client) = client else {
        return Ok(socket);
    };
    // The kernel chooses the port: the client may have connected to two frontends from one port, and both may
    // lead to one endpoint.
    let client = SocketAddr::new(client, 0);
    // Linux takes these options for sockets of both families (`do_ipv6_setsockopt`).
    setsockopt(&socket, IpTransparent, &true)?;
    // The port need differ only from those of connections to the same endpoint.
    setsockopt(&socket, IpBindAddressNoPort, &true)?;
    socket.bind(&client.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_pass_between_endpoints_of_this_node_and_other_hosts_only() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let answers = LocalAnswers::default();
        answers.set_own(["172.18.0.2", "fd00::1"].map(address).into());
        answers.add(["10.244.1.2", "fd00:244::2", "172.18.0.2", "127.0.0.1"].map(address));
        for (endpoint, client, expected) in [
            ("10.244.1.2", "203.0.113.9", true),
            ("fd00:244::2", "2001:db8::9", true),
            // A Pod of this node that is no endpoint of the Service.
            ("10.244.1.2", "10.244.1.3", true),
            // On another node.
            ("10.244.2.2", "203.0.113.9", false),
            // A process of this node, and clients there.
            ("172.18.0.2", "203.0.113.9", false),
            ("127.0.0.1", "203.0.113.9", false),
            ("10.244.1.2", "172.18.0.2", false),
            ("10.244.1.2", "127.0.0.1", false),
            ("fd00:244::2", "fd00::1", false),
            // Its own client.
            ("10.244.1.2", "10.244.1.2", false),
        ] {
            let pass = answers.pass(address(endpoint), address(client));
            assert_eq!(pass, expected, "{endpoint} to {client}");
        }
        answers.remove(&address("10.244.1.2"));
        assert!(!answers.pass(address("10.244.1.2"), address("203.0.113.9")));
    }
}
