//! Datagrams that endpoints refuse, and datagrams without an endpoint.

use std::io::ErrorKind;

use super::*;

/// Returns a client of `address` in the same family.
fn client(address: SocketAddr) -> UdpSocket {
    let client = UdpSocket::bind((address.ip(), 0)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.connect(address).unwrap();
    client
}

/// Sends one datagram. Returns the answer, or the error that came instead.
fn ask(client: &UdpSocket) -> Result<Vec<u8>, ErrorKind> {
    client.send(b"question").map_err(|error| error.kind())?;
    let mut answer = vec![0; 16];
    let length = client.recv(&mut answer).map_err(|error| error.kind())?;
    answer.truncate(length);
    Ok(answer)
}

/// Returns whether a new client is refused at once.
fn is_refused(address: SocketAddr) -> bool {
    let client = client(address);
    let short = Duration::from_millis(200);
    client.set_read_timeout(Some(short)).unwrap();
    ask(&client) == Err(ErrorKind::ConnectionRefused)
}

/// Opens a frontend at an unused port of `host`.
fn open_at(relay: &mut Relay, host: &str, pool: &Arc<EndpointPool>) -> (SocketAddr, Listening) {
    let address = SocketAddr::new(host.parse().unwrap(), unused_port());
    let listening = relay.open(Transport::Udp, address, route(pool)).unwrap();
    (address, listening)
}

/// The port stays reserved, although the kernel answers as if it were free.
#[test]
fn without_endpoints_the_kernel_refuses_datagrams_until_one_appears() {
    for host in ["127.0.0.1", "::1"] {
        let pool = pool("rr", None);
        let mut relay = relay();
        let (address, mut listening) = open_at(&mut relay, host, &pool);
        let endpoint = datagram_endpoint();
        for _ in 0..2 {
            // A worker may still have a socket, in whose queue a datagram is lost when it closes.
            eventually(|| (0..8).all(|_| is_refused(address)));
            let taken = UdpSocket::bind(address).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            add(&pool, endpoint);
            relay.adjust(&mut listening).unwrap();
            assert_eq!(ask(&client(address)), Ok(b"question".to_vec()));
            pool.remove(endpoint);
            relay.adjust(&mut listening).unwrap();
        }
    }
}

/// Each client sends a single datagram. One of the endpoints cannot even be sent to.
#[test]
fn a_datagram_that_endpoints_refuse_reaches_the_next_one() {
    let pool = pool("rr", None);
    let unreachable = "255.255.255.255:9".parse().unwrap();
    for endpoint in [unused(), datagram_endpoint(), unreachable] {
        add(&pool, endpoint);
    }
    add(&pool, unused());
    let mut relay = relay();
    let (address, _listening) = open_at(&mut relay, "127.0.0.1", &pool);
    for _ in 0..8 {
        assert_eq!(ask(&client(address)), Ok(b"question".to_vec()));
    }
    assert_eq!(relay.statistics().refused.get(), 0);
}

/// A flow with answers continues at another endpoint with the client's next datagram.
#[test]
fn a_flow_whose_endpoint_dies_continues_at_another_one() {
    let mortal = UdpSocket::bind(unused()).unwrap();
    let pool = pool("rr", None);
    add(&pool, mortal.local_addr().unwrap());
    let mut relay = relay();
    let (address, _listening) = open_at(&mut relay, "127.0.0.1", &pool);
    let client = client(address);
    client.send(b"first").unwrap();
    let mut datagram = [0; 16];
    let (_, from) = mortal.recv_from(&mut datagram).unwrap();
    mortal.send_to(b"answer", from).unwrap();
    assert_eq!(client.recv(&mut datagram).unwrap(), 6);
    add(&pool, datagram_endpoint());
    drop(mortal);
    client
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    eventually(|| ask(&client) == Ok(b"question".to_vec()));
}

/// The relay tells clients itself. Only a process with CAP_NET_RAW can.
#[test]
fn clients_learn_that_all_endpoints_refuse() {
    lab::test(|| {
        for host in ["127.0.0.1", "::1"] {
            let pool = pool("rr", None);
            let endpoints = [unused(), unused()];
            endpoints.iter().for_each(|&endpoint| add(&pool, endpoint));
            let mut relay = relay();
            let (address, _listening) = open_at(&mut relay, host, &pool);
            let client = client(address);
            for _ in 0..3 {
                assert_eq!(ask(&client), Err(ErrorKind::ConnectionRefused));
            }
            assert_eq!(relay.statistics().refused.get(), 3);
            // The frontend is open: an endpoint that returns serves the same client.
            let returned = UdpSocket::bind(endpoints[0]).unwrap();
            client.send(b"again").unwrap();
            returned.set_read_timeout(Some(PATIENCE)).unwrap();
            let (_, from) = returned.recv_from(&mut [0; 16]).unwrap();
            returned.send_to(b"answer", from).unwrap();
            assert_eq!(client.recv(&mut [0; 16]).unwrap(), 6);
        }
    });
}

/// Anybody can send "port unreachable" to a flow. The endpoint keeps a flow that had answers, and is not left out,
/// unless it refuses the next datagram too.
#[test]
fn a_single_refusal_ends_no_flow_with_answers() {
    let address = unused();
    let pool = pool("rr", None);
    add(&pool, address);
    let mut relay = relay();
    let (frontend, _listening) = open_at(&mut relay, "127.0.0.1", &pool);
    let client = client(frontend);
    let mut endpoint = UdpSocket::bind(address).unwrap();
    let mut datagram = [0; 16];
    client.send(b"first").unwrap();
    let (_, flow) = endpoint.recv_from(&mut datagram).unwrap();
    endpoint.send_to(b"answer", flow).unwrap();
    client.recv(&mut datagram).unwrap();
    add(&pool, datagram_endpoint());
    loop {
        drop(endpoint);
        client.send(b"lost").unwrap();
        std::thread::sleep(Duration::from_millis(20));
        endpoint = UdpSocket::bind(address).unwrap();
        endpoint.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send(b"again").unwrap();
        let (length, from) = endpoint.recv_from(&mut datagram).unwrap();
        assert_eq!(from, flow);
        // Otherwise the relay had not sent it before the endpoint returned.
        if &datagram[..length] == b"again" {
            break;
        }
        endpoint.recv_from(&mut datagram).unwrap();
    }
}
