//! The sockets: clients with any source address, and servers at every address.
//!
//! Routes make whole prefixes local, so no address must be assigned. One socket per port serves all
//! servers of that port, and learns from each packet which server it was sent to.

use std::io::{IoSliceMut, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::net::poll_within;
use netlink::transport::{Transport, protocols};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{set_ipv6_freebind, set_ipv6_v6only};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// The ports of the servers.
pub(crate) const SERVER_PORTS: [u16; 3] = [8080, 80, 9000];

/// How long a packet may take; normally the loopback device delivers at once.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The prefixes that are local in every scenario: clients, frontends and servers.
const LOCAL: [(IpAddr, u8); 5] = [
    (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    (IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    (IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0)), 8),
    (
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0)),
        32,
    ),
];

/// Makes [`LOCAL`] local in the calling thread's network namespace.
pub(crate) fn make_prefixes_local() -> Result<()> {
    let mut routes = Transport::open(protocols::NETLINK_ROUTE)?;
    for (prefix, length) in LOCAL {
        let doing = format!("making {prefix}/{length} local");
        routes.request(RTM_NEWROUTE, NLM_F_CREATE, &doing, |writer| {
            let family = if prefix.is_ipv4() { AF_INET } else { AF_INET6 };
            let [scope, kind] = [RT_SCOPE_HOST, RTN_LOCAL];
            let mut message = [0; 12];
            message[..2].copy_from_slice(&[family, length]);
            message[4..8].copy_from_slice(&[RT_TABLE_LOCAL, RTPROT_STATIC, scope, kind]);
            writer.header(&message);
            match prefix {
                IpAddr::V4(prefix) => writer.bytes(RTA_DST, &prefix.octets()),
                IpAddr::V6(prefix) => writer.bytes(RTA_DST, &prefix.octets()),
            }
            writer.u32(RTA_OIF, LOOPBACK_INDEX);
            // A delayed ACK would arrive after the timeouts were changed or the server was removed.
            writer.nested(RTA_METRICS, |metrics| metrics.u32(RTAX_QUICKACK, 1));
        })?;
    }
    Ok(())
}

// Constants of linux/rtnetlink.h and linux/netlink.h.
const RTM_NEWROUTE: u16 = 24;
const NLM_F_CREATE: u16 = 0x400;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTAX_QUICKACK: u16 = 15;
/// The index of `lo`, the same in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// The sockets of all servers of one address family, and what their clients need.
#[derive(Debug)]
pub(crate) struct Sockets {
    mark: Option<u32>,
    listeners: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
    sent: u32,
}

/// Both ends of an established TCP connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// The client's end.
    pub(crate) client: TcpStream,
    /// The server's end.
    pub(crate) server: TcpStream,
}

/// A TCP client that has sent a SYN.
#[derive(Debug)]
pub(crate) struct Connecting {
    client: OwnedFd,
    source: SocketAddr,
}

impl Sockets {
    /// Opens [`SERVER_PORTS`] at every address of `family`. Packets of clients carry `mark`.
    pub(crate) fn open(family: u8, mark: Option<u32>) -> Result<Self> {
        let everywhere: IpAddr = match family {
            4 => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (mut listeners, mut datagrams) = (Vec::new(), Vec::new());
        for port in SERVER_PORTS {
            let listener = TcpListener::bind((everywhere, port))?;
            listener.set_nonblocking(true)?;
            listeners.push(listener);
            let socket = UdpSocket::bind((everywhere, port))?;
            match family {
                4 => setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?,
                _ => setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?,
            }
            datagrams.push(socket);
        }
        Ok(Self {
            mark,
            listeners,
            datagrams,
            sent: 0,
        })
    }

    /// Sends a datagram and returns the server that received it, or `None` if it was refused.
    pub(crate) fn send(
        &mut self,
        source: SocketAddr,
        to: SocketAddr,
    ) -> Result<Option<SocketAddr>> {
        let client = self.client(SocketType::DGRAM, source)?;
        self.sent += 1;
        let content = self.sent.to_ne_bytes();
        match rustix::net::sendto(&client, &content, rustix::net::SendFlags::empty(), &to) {
            // IPVS drops a local client's packet if there is no server; `sendto` then returns EPERM.
            Err(Errno::PERM) => return Ok(None),
            sent => ensure!(sent? == content.len(), "half a datagram"),
        }
        let port = wait_for(&self.datagrams).context("a datagram was lost")?;
        let (server, received) = receive(&self.datagrams[port], SERVER_PORTS[port])?;
        ensure!(received == content, "a datagram of another client");
        Ok(Some(server))
    }

    /// Sends a SYN. Only the counts of IPVS show whether it was refused.
    pub(crate) fn send_syn(&self, source: SocketAddr, to: SocketAddr) -> Result<Connecting> {
        let client = self.client(SocketType::STREAM, source)?;
        match rustix::net::connect(&client, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(Connecting { client, source }),
            Err(errno) => Err(errno).with_context(|| format!("connecting {source} to {to}")),
        }
    }

    /// Accepts the connection of `connecting` and returns the server that got it.
    pub(crate) fn accept(&self, connecting: Connecting) -> Result<(Link, SocketAddr)> {
        let port = wait_for(&self.listeners).context("no server received the connection")?;
        let (server, source) = self.listeners[port].accept()?;
        ensure!(
            source == connecting.source,
            "a connection of another client"
        );
        let backend = server.local_addr()?;
        let client = TcpStream::from(connecting.client);
        client.set_nonblocking(false)?;
        Ok((Link { client, server }, backend))
    }

    /// Returns a client's socket bound to `source`.
    fn client(&self, kind: SocketType, source: SocketAddr) -> Result<OwnedFd> {
        let family = match source {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, kind, flags, None)?;
        if source.is_ipv6() {
            set_ipv6_v6only(&socket, true)?;
            // IPv6 rejects a source address that is local only by a route, unless the socket is "freebind".
            set_ipv6_freebind(&socket, true)?;
        }
        if let Some(mark) = self.mark {
            setsockopt(&socket, sockopt::Mark, &mark)?;
        }
        rustix::net::bind(&socket, &source).with_context(|| format!("binding {source}"))?;
        Ok(socket)
    }
}

impl Link {
    /// Sends one byte from the client to the server, which restarts the connection's timer in IPVS.
    pub(crate) fn poke(&mut self) -> Result<()> {
        self.client.write_all(b"x")?;
        let arrives = poll_within(&mut [PollFd::new(&self.server, PollFlags::IN)], TIMEOUT)?;
        ensure!(arrives, "the byte was lost");
        self.server.read_exact(&mut [0])?;
        Ok(())
    }
}

/// Waits for input and returns the index of a socket that has some.
fn wait_for(sockets: &[impl AsFd]) -> Result<usize> {
    let mut watched: Vec<_> = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    poll_within(&mut watched, TIMEOUT)?;
    let ready = |socket: &PollFd<'_>| !socket.revents().is_empty();
    watched.iter().position(ready).context("no input in time")
}

/// Reads a datagram and the address that it was sent to.
fn receive(socket: &UdpSocket, port: u16) -> Result<(SocketAddr, [u8; 4])> {
    let mut content = [0; 4];
    let mut parts = [IoSliceMut::new(&mut content)];
    let mut control = nix::cmsg_space!(nix::libc::in6_pktinfo);
    let flags = MsgFlags::MSG_DONTWAIT;
    let received =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut server = None;
    for message in received.cmsgs()? {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                server = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                server = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
            }
            _ => {}
        }
    }
    let server: IpAddr = server.context("a datagram without its destination")?;
    Ok((SocketAddr::new(server, port), content))
}
