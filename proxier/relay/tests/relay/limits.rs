//! Frontends and clients share descriptors.

use std::io::ErrorKind;

use relay::OpenError;

use super::*;

/// Connects from this address of the loopback device; `None` if the client is reset before it notices that it
/// is connected.
fn try_connect_from(source: [u8; 4], address: SocketAddr) -> Option<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    match socket.connect(&address.into()) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
        other => other.unwrap(),
    }
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(stream)
}

fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    try_connect_from(source, address).unwrap()
}

/// How long to wait for what must not happen.
const SHORT: Duration = Duration::from_millis(500);

/// Returns whether an endpoint greets the client within half a second.
fn is_greeted(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    stream.read_exact(&mut [0; 1]).is_ok()
}

/// Returns whether an endpoint has greeted the client.
fn has_greeting(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let is_greeted = stream.peek(&mut [0; 1]).is_ok();
    stream.set_nonblocking(false).unwrap();
    is_greeted
}

const GREEDY: [u8; 4] = [127, 0, 0, 1];
const MODEST: [u8; 4] = [127, 0, 0, 2];

#[test]
fn a_frontend_with_many_connections_leaves_room_for_others() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay_with(200);
    let (crowded, _listening) = open(&mut relay, &pool);
    let (other, _other) = open(&mut relay, &pool);
    // From many addresses, so that no client uses up its share.
    let clients: Vec<TcpStream> = (0..100)
        .map(|host| connect_from([127, 1, 0, host + 1], crowded))
        .collect();
    eventually(|| relay.statistics().held_back.get() > 0);
    let mut waiting = clients;
    eventually(|| waiting.iter().filter(|it| has_greeting(it)).count() >= 76);
    // Further clients wait.
    std::thread::sleep(SHORT);
    let mut served: Vec<TcpStream> = waiting.extract_if(.., |it| has_greeting(it)).collect();
    let count = served.len();
    // 175 of 200 descriptors, 4 of them for listeners: eight ninths of 171 for this frontend. The second worker may
    // accept one more meanwhile.
    assert!((76..=77).contains(&count), "{count}");
    assert_eq!(greeting(&mut connect_from(MODEST, other)), 'a');
    // The waiting clients are served when others leave.
    for client in &mut served {
        assert_eq!(greeting(client), 'a');
    }
    drop(served);
    for client in &mut waiting {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(greeting(client), 'a');
    }
    assert_eq!(relay.statistics().over_share.get(), 0);
}

#[test]
fn a_client_with_many_connections_leaves_room_for_others() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay_with(200);
    let frontends = [0, 1].map(|_| open(&mut relay, &pool));
    let mut clients: Vec<Option<TcpStream>> = (0..100)
        .map(|number| try_connect_from(GREEDY, frontends[number % 2].0))
        .collect();
    eventually(|| relay.statistics().connected.get() + relay.statistics().over_share.get() == 100);
    assert_eq!(relay.statistics().connected.get(), 76);
    let is_reset = |client: &mut Option<TcpStream>| {
        let result = client.as_mut().map(|client| client.read(&mut [0; 1]));
        result.is_none_or(|it| it.is_err_and(|it| it.kind() == ErrorKind::ConnectionReset))
    };
    assert_eq!(clients.extract_if(.., is_reset).count(), 24);
    for (address, _) in &frontends {
        assert_eq!(greeting(&mut connect_from(MODEST, *address)), 'a');
    }
    drop(clients);
    eventually(|| {
        let client = try_connect_from(GREEDY, frontends[0].0);
        client.is_some_and(|mut it| is_greeted(&mut it))
    });
}

#[test]
fn flows_of_a_client_without_a_share_replace_its_others() {
    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let pool = pool("rr", None);
    add(&pool, echo.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((_, client)) = echo.recv_from(&mut [0; 8]) {
            echo.send_to(b"!", client).unwrap();
        }
    });
    let mut relay = relay_with(64);
    let address = unused();
    let _listening = relay.open(Transport::Udp, address, route(&pool)).unwrap();
    let mut kept = Vec::new();
    for _ in 0..200 {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.connect(address).unwrap();
        client.send(b"?").unwrap();
        client.recv(&mut [0; 8]).unwrap();
        kept.push(client);
    }
    assert!(relay.statistics().over_share.get() > 100);
}

#[test]
fn listeners_leave_descriptors_for_connections() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay_with(100);
    // 88 of 100 descriptors, three quarters of them for listeners of two workers.
    let mut open_ones: Vec<_> = (0..33).map(|_| open(&mut relay, &pool)).collect();
    assert_eq!(relay.room(), (0, 33));
    let refused = relay
        .open(Transport::Tcp, unused(), route(&pool))
        .unwrap_err();
    assert!(matches!(
        refused,
        OpenError::Listeners {
            most: 66,
            limit: 100
        }
    ));
    for words in ["100 files", "ulimit -Hn", "--userspace-workers"] {
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert_eq!(greeting(&mut connect(open_ones[0].0)), 'a');
    let (_, closed) = open_ones.pop().unwrap();
    relay.close(closed);
    assert_eq!(relay.room(), (1, 33));
    open(&mut relay, &pool);
}
