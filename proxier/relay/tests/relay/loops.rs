//! Endpoints that lead back to a relay.

use super::*;

/// The hops of a packet of Linux.
const HOPS: usize = 64;

/// Two relays, as those of two nodes, each of which is the only endpoint of the other one.
struct Circle {
    relays: [Relay; 2],
    pools: [Arc<EndpointPool>; 2],
    addresses: [SocketAddr; 2],
    _listening: [Listening; 2],
}

impl Circle {
    fn new(transport: Transport, host: &str) -> Self {
        let addresses = [(); 2].map(|()| SocketAddr::new(host.parse().unwrap(), unused_port()));
        let (mut relays, pools) = ([relay(), relay()], [pool("rr", None), pool("rr", None)]);
        add(&pools[0], addresses[1]);
        add(&pools[1], addresses[0]);
        let listening = [0, 1].map(|index| {
            let opened = relays[index].open(transport, addresses[index], route(&pools[index]));
            opened.unwrap()
        });
        Self {
            relays,
            pools,
            addresses,
            _listening: listening,
        }
    }

    fn refusals(&self) -> u64 {
        let refusals = self.relays.iter();
        refusals.map(|relay| relay.statistics().refused.get()).sum()
    }

    /// Returns the number of connections and flows of both relays.
    fn relayed(&self) -> usize {
        let counts = [0, 1].map(|index| self.pools[index].counts(self.addresses[1 - index]));
        let counts = counts.map(|counts| counts.active + counts.inactive);
        counts.iter().sum::<u32>().try_into().unwrap()
    }
}

#[test]
fn a_connection_that_circles_between_relays_ends() {
    for host in ["127.0.0.1", "::1"] {
        let circle = Circle::new(Transport::Tcp, host);
        let mut client = connect(circle.addresses[0]);
        let error = client.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        // More than one, if a reset arrives while a connection is still being made.
        assert!(circle.refusals() >= 1);
        eventually(|| circle.relayed() == 0);
    }
}

#[test]
fn a_datagram_that_circles_between_relays_is_dropped() {
    for host in ["127.0.0.1", "::1"] {
        let circle = Circle::new(Transport::Udp, host);
        let client = UdpSocket::bind((circle.addresses[0].ip(), 0)).unwrap();
        client.send_to(b"question", circle.addresses[0]).unwrap();
        eventually(|| circle.refusals() == 1);
        assert_eq!(circle.relayed(), HOPS - 1);
        // The flows exist, and a further datagram passes through each of them once.
        client.send_to(b"question", circle.addresses[0]).unwrap();
        eventually(|| circle.refusals() == 2);
        assert_eq!(circle.relayed(), HOPS - 1);
    }
}
