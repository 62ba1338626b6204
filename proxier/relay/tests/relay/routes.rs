//! Connections and flows whose client or endpoint a new route does not permit.

use net::{Cidr, Family, Networks};
use relay::InsideClients;

use super::*;

const OTHER_CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a route that admits only clients in `network`.
fn limited(pool: &Arc<EndpointPool>, network: &str) -> Route {
    let sources = Networks::new(Family::V4, Cidr::parse(network));
    Route {
        sources: Some(sources),
        ..route(pool)
    }
}

/// Returns a route that leads processes of this node to other endpoints.
fn divided(pool: &Arc<EndpointPool>, inside: &Arc<EndpointPool>) -> Route {
    Route {
        inside: Some((Arc::new(InsideClients::default()), inside.clone())),
        ..route(pool)
    }
}

/// Connects from an address of the loopback device.
fn connect_from(client: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

fn is_reset(client: &mut TcpStream) -> bool {
    let result = client.read(&mut [0; 1]);
    result.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
}

fn echoes(client: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    client.write_all(b"x").is_ok() && client.read_exact(&mut byte).is_ok() && byte == *b"x"
}

/// Opens a UDP frontend, and a flow of one client to it.
fn flow(relay: &mut Relay, pool: &Arc<EndpointPool>) -> (Listening, UdpSocket) {
    let address = unused();
    let listening = relay.open(Transport::Udp, address, route(pool)).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(address).unwrap();
    (listening, client)
}

/// An endpoint that tells which datagram came from where.
fn receiver(pool: &EndpointPool) -> UdpSocket {
    let endpoint = UdpSocket::bind("127.0.0.1:0").unwrap();
    endpoint.set_read_timeout(Some(PATIENCE)).unwrap();
    add(pool, endpoint.local_addr().unwrap());
    endpoint
}

fn sender(endpoint: &UdpSocket) -> SocketAddr {
    endpoint.recv_from(&mut [0; 16]).unwrap().1
}

#[test]
fn connections_of_clients_that_are_no_longer_admitted_are_reset_and_others_stay() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay();
    let (address, mut listening) = open(&mut relay, &pool);
    let mut client = connect(address);
    let mut other = connect_from(OTHER_CLIENT, address);
    assert_eq!([greeting(&mut client), greeting(&mut other)], ['a', 'a']);
    let route = limited(&pool, "127.0.0.2/32");
    relay.set_route(&mut listening, route).unwrap();
    assert!(is_reset(&mut client));
    assert!(echoes(&mut other));
}

#[test]
fn flows_of_clients_that_are_no_longer_admitted_end() {
    let pool = pool("rr", None);
    let endpoint = receiver(&pool);
    let mut relay = relay();
    let (mut listening, client) = flow(&mut relay, &pool);
    client.send(b"first").unwrap();
    let first = sender(&endpoint);
    let address = endpoint.local_addr().unwrap();
    let excluding = limited(&pool, "127.0.0.2/32");
    relay.set_route(&mut listening, excluding).unwrap();
    eventually(|| pool.counts(address) == Default::default());
    client.send(b"lost").unwrap();
    // Otherwise the relay might receive the lost one after the next route.
    let other = UdpSocket::bind((OTHER_CLIENT, 0)).unwrap();
    other.connect(client.peer_addr().unwrap()).unwrap();
    other.send(b"other").unwrap();
    assert_ne!(sender(&endpoint), first);
}

#[test]
fn a_flow_moves_if_another_policy_excludes_its_endpoint_and_a_connection_stays() {
    let (all, inside) = (pool("rr", None), pool("rr", None));
    let (old, new) = (receiver(&all), receiver(&inside));
    let mut relay = relay();
    let (mut listening, client) = flow(&mut relay, &all);
    client.send(b"first").unwrap();
    let first = sender(&old);
    relay
        .set_route(&mut listening, divided(&all, &inside))
        .unwrap();
    eventually(|| all.counts(old.local_addr().unwrap()) == Default::default());
    client.send(b"second").unwrap();
    sender(&new);
    // The policy of before.
    relay.set_route(&mut listening, route(&all)).unwrap();
    eventually(|| inside.counts(new.local_addr().unwrap()) == Default::default());
    client.send(b"third").unwrap();
    assert_ne!(sender(&old), first);

    let (all, inside) = (pool("rr", None), pool("rr", None));
    add(&all, endpoint("a"));
    add(&inside, endpoint("b"));
    let (address, mut listening) = open(&mut relay, &all);
    let mut client = connect(address);
    assert_eq!(greeting(&mut client), 'a');
    relay
        .set_route(&mut listening, divided(&all, &inside))
        .unwrap();
    eventually(|| greeting(&mut connect(address)) == 'b');
    assert!(echoes(&mut client));
}

#[test]
fn what_another_policy_permits_stays_and_ends_with_its_endpoint_there() {
    let (all, inside) = (pool("rr", None), pool("rr", None));
    let old = receiver(&all);
    let address = old.local_addr().unwrap();
    add(&inside, address);
    let mut relay = relay();
    let (mut listening, client) = flow(&mut relay, &all);
    client.send(b"first").unwrap();
    let first = sender(&old);
    relay
        .set_route(&mut listening, divided(&all, &inside))
        .unwrap();
    eventually(|| inside.counts(address).inactive == 1);
    assert_eq!(all.counts(address), Default::default());
    client.send(b"second").unwrap();
    assert_eq!(sender(&old), first);
    let new = receiver(&inside);
    inside.remove(address);
    relay.cut();
    let is_moved = || {
        client.send(b"third").unwrap();
        new.set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        new.recv_from(&mut [0; 16]).is_ok()
    };
    eventually(is_moved);

    let (all, inside) = (pool("rr", None), pool("rr", None));
    let endpoint = endpoint("a");
    add(&all, endpoint);
    add(&inside, endpoint);
    let (frontend, mut listening) = open(&mut relay, &all);
    let mut client = connect(frontend);
    assert_eq!(greeting(&mut client), 'a');
    relay
        .set_route(&mut listening, divided(&all, &inside))
        .unwrap();
    eventually(|| inside.counts(endpoint).active == 1);
    all.remove(endpoint);
    relay.cut();
    assert!(echoes(&mut client));
    inside.remove(endpoint);
    relay.cut();
    assert!(is_reset(&mut client));
}
