//! The hops that a client's packets have left (TTL, hop limit).
//!
//! Each router takes one from a packet, and drops it when none is left. So does this relay: a connection to an
//! endpoint begins with one hop less than its client's packets had. With the kernel's default instead, a connection
//! whose endpoint leads back to a relay, on this node or on others, would circle for ever.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use mio::net::TcpStream;
use socket2::SockRef;

/// The hops of packets that leave a relay; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hops(u8);

impl Hops {
    /// The default of Linux (`IPDEFTTL`). A client that begins with more gets as much.
    const MOST: u8 = 64;

    /// Returns the hops after this relay of packets that arrived with `received`; `None` if none are left.
    ///
    /// If the kernel does not tell, they are those of a client of this machine.
    pub(crate) fn after(received: Option<u8>) -> Option<Self> {
        let left = received.unwrap_or(Self::MOST).min(Self::MOST);
        left.checked_sub(1).filter(|&left| left > 0).map(Self)
    }

    /// Returns the hops after this relay of the connection of an accepted client; `None` if none are left.
    pub(crate) fn after_client(client: &TcpStream, address: SocketAddr) -> Option<Self> {
        let client = SockRef::from(client);
        // An accepted socket has those of the packet that completed its handshake as its limit for multicast
        // (`mc_ttl` in `tcp_v4_syn_recv_sock`, `mcast_hops` in `tcp_v6_syn_recv_sock`).
        let received = match address {
            SocketAddr::V4(_) => client.multicast_ttl_v4(),
            SocketAddr::V6(_) => client.multicast_hops_v6(),
        };
        Self::after(received.ok().and_then(|hops| u8::try_from(hops).ok()))
    }

    /// Makes the packets of a socket, which is for `endpoint`, begin with these hops.
    pub(crate) fn limit(self, socket: &impl AsFd, endpoint: SocketAddr) -> io::Result<()> {
        let (socket, hops) = (SockRef::from(socket), self.0.into());
        match endpoint {
            SocketAddr::V4(_) => socket.set_ttl_v4(hops),
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(hops),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_relay_takes_one_hop_and_the_last_one_is_not_relayed() {
        let after = |received| Hops::after(received).map(|hops| hops.0);
        assert_eq!(after(None), Some(63));
        assert_eq!(after(Some(255)), Some(63));
        assert_eq!(after(Some(2)), Some(1));
        assert_eq!(after(Some(1)), None);
        assert_eq!(after(Some(0)), None);
    }
}
