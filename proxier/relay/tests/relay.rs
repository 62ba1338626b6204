//! The relay between real clients and endpoints on the loopback device.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "relay/clients.rs"]
mod clients;
#[path = "relay/faults.rs"]
mod faults;
#[path = "relay/idle.rs"]
mod idle;
#[path = "relay/limits.rs"]
mod limits;
#[path = "relay/loops.rs"]
mod loops;
#[path = "relay/proxy_header.rs"]
mod proxy_header;
#[path = "relay/refused.rs"]
mod refused;
#[path = "relay/schedulers.rs"]
mod registered;
#[path = "relay/routes.rs"]
mod routes;
#[path = "relay/silence.rs"]
mod silence;
#[path = "relay/transfers.rs"]
mod transfers;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::net::unused_port;
use relay::{EndpointPool, Listening, PoolConfig, Relay, RelayLimits, Route, Transport};
use schedulers::{Options, Thresholds};

/// How long to wait for what must happen. On a busy machine, a thread may stand still for half a minute.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns a pool that chooses with `scheduler`.
fn pool(scheduler: &str, affinity: Option<Duration>) -> Arc<EndpointPool> {
    let config = PoolConfig {
        scheduler: scheduler.to_owned(),
        options: Options::default(),
        affinity,
    };
    Arc::new(EndpointPool::new(&config, Duration::ZERO).unwrap())
}

fn add(pool: &EndpointPool, endpoint: SocketAddr) {
    pool.add(endpoint, 1, Thresholds::default()).unwrap();
}

fn route(pool: &Arc<EndpointPool>) -> Route {
    Route::to(pool.clone())
}

/// Returns an address of the loopback device at which nothing listens.
fn unused() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, unused_port()).into()
}

fn relay() -> Relay {
    relay_with(RelayLimits::default().files)
}

/// Starts a relay with this limit of descriptors.
fn relay_with(files: usize) -> Relay {
    Relay::start(RelayLimits {
        workers: 2,
        files,
        ..RelayLimits::default()
    })
    .unwrap()
}

fn open(relay: &mut Relay, pool: &Arc<EndpointPool>) -> (SocketAddr, Listening) {
    let address = unused();
    let listening = relay.open(Transport::Tcp, address, route(pool)).unwrap();
    (address, listening)
}

/// Starts an endpoint that calls `each` with each connection, on a thread of its own.
fn serve(each: impl Fn(TcpStream) + Copy + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || each(stream));
        }
    });
    address
}

/// Starts an endpoint that sends `name`, then returns each byte, and after the client's last byte sends `.`.
fn endpoint(name: &'static str) -> SocketAddr {
    serve(move |stream| echo(name, stream))
}

fn echo(name: &str, mut stream: TcpStream) {
    let mut buffer = [0; 65_536];
    let _ = stream.write_all(name.as_bytes());
    while let Ok(length) = stream.read(&mut buffer) {
        if length == 0 {
            let _ = stream.write_all(b".");
            return;
        }
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// Starts an endpoint that returns each datagram.
fn datagram_endpoint() -> SocketAddr {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 16];
        while let Ok((length, client)) = server.recv_from(&mut buffer) {
            server.send_to(&buffer[..length], client).unwrap();
        }
    });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns the name of the endpoint that accepted.
fn greeting(stream: &mut TcpStream) -> char {
    let mut name = [0; 1];
    stream.read_exact(&mut name).unwrap();
    char::from(name[0])
}

#[track_caller]
fn eventually(condition: impl FnMut() -> bool) {
    assert!(lab::await_true(Duration::from_millis(5), condition));
}

#[test]
fn connections_alternate_between_endpoints_and_carry_bytes_both_ways() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    add(&pool, endpoint("b"));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let mut names = String::new();
    for _ in 0..6 {
        let mut client = connect(address);
        names.push(greeting(&mut client));
        client.write_all(b"question").unwrap();
        let mut answer = [0; 8];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"question");
        client.shutdown(Shutdown::Write).unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, ".", "the answer after the client's end is lost");
    }
    assert!(["ababab", "bababa"].contains(&&*names), "{names}");
}

#[test]
fn large_transfers_survive_slow_readers() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let mut client = connect(address);
    greeting(&mut client);
    let sent: Vec<u8> = (0..16_u32 << 20)
        .map(|index| ((index * 7) >> 3).to_le_bytes()[0])
        .collect();
    let mut writer = client.try_clone().unwrap();
    let copy = sent.clone();
    let thread = std::thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    // The answers fill all buffers on the way before anything is read.
    std::thread::sleep(Duration::from_millis(300));
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    thread.join().unwrap();
    assert_eq!(received.pop(), Some(b'.'));
    assert!(received == sent);
}

#[test]
fn another_endpoint_serves_a_client_whose_endpoint_refuses() {
    let pool = pool("rr", None);
    add(&pool, unused());
    add(&pool, endpoint("a"));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    for _ in 0..10 {
        assert_eq!(greeting(&mut connect(address)), 'a');
    }
    assert_eq!(relay.statistics().refused.get(), 0);
}

#[test]
fn without_endpoints_the_kernel_refuses_connections_until_one_appears() {
    let pool = pool("rr", None);
    let mut relay = relay();
    let (address, mut listening) = open(&mut relay, &pool);
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let endpoint = endpoint("a");
    add(&pool, endpoint);
    relay.adjust(&mut listening).unwrap();
    assert_eq!(greeting(&mut connect(address)), 'a');
    pool.remove(endpoint);
    relay.adjust(&mut listening).unwrap();
    eventually(|| TcpStream::connect(address).is_err());
}

#[test]
fn connections_of_a_removed_endpoint_are_reset_and_others_stay() {
    let pool = pool("rr", None);
    let endpoints = [endpoint("a"), endpoint("b")];
    endpoints.iter().for_each(|&endpoint| add(&pool, endpoint));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let mut clients = [connect(address), connect(address)];
    let names = clients.each_mut().map(greeting);
    assert_eq!(pool.counts(endpoints[0]).active, 1);
    pool.remove(endpoints[0]);
    relay.cut();
    for (client, name) in clients.iter_mut().zip(names) {
        let mut byte = [0; 1];
        if name == 'a' {
            let error = client.read(&mut byte).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        } else {
            client.write_all(b"x").unwrap();
            client.read_exact(&mut byte).unwrap();
        }
    }
}

#[test]
fn an_endpoint_of_weight_0_keeps_its_connections_and_gets_no_new_ones() {
    let pool = pool("lc", None);
    let endpoints = [endpoint("a"), endpoint("b")];
    endpoints.iter().for_each(|&endpoint| add(&pool, endpoint));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let mut clients = [connect(address), connect(address)];
    let mut names = clients.each_mut().map(greeting);
    names.sort_unstable();
    assert_eq!(names, ['a', 'b']);
    pool.set(endpoints[0], 0, Thresholds::default()).unwrap();
    for _ in 0..5 {
        assert_eq!(greeting(&mut connect(address)), 'b');
    }
    for client in &mut clients {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
    }
    drop(clients);
    eventually(|| {
        endpoints
            .iter()
            .all(|&it| pool.counts(it) == Default::default())
    });
}

#[test]
fn affinity_keeps_a_client_at_its_endpoint() {
    let pool = pool("rr", Some(Duration::from_secs(60)));
    add(&pool, endpoint("a"));
    add(&pool, endpoint("b"));
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let first = greeting(&mut connect(address));
    for _ in 0..5 {
        assert_eq!(greeting(&mut connect(address)), first);
    }
}

#[test]
fn a_reset_passes_through_in_both_directions() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = pool("rr", None);
    add(&pool, listener.local_addr().unwrap());
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    for reset_by_client in [true, false] {
        let mut client = connect(address);
        client.write_all(b"x").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut [0; 1]).unwrap();
        let (broken, mut other) = match reset_by_client {
            true => (client, server),
            false => (server, client),
        };
        socket2::SockRef::from(&broken)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(broken);
        let error = other.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn datagrams_of_a_client_stay_at_one_endpoint_and_answers_return() {
    let pool = pool("rr", None);
    let servers = ["a", "b"].map(|name| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        add(&pool, address);
        std::thread::spawn(move || {
            let mut buffer = [0; 2_048];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                let mut answer = name.as_bytes().to_vec();
                answer.extend_from_slice(&buffer[..length]);
                socket.send_to(&answer, client).unwrap();
            }
        });
        address
    });
    let mut relay = relay();
    let address = unused();
    let _listening = relay.open(Transport::Udp, address, route(&pool)).unwrap();
    // The workers register their sockets a moment later; until then the kernel keeps the datagrams.
    let mut seen = String::new();
    for _ in 0..4 {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.connect(address).unwrap();
        let mut names = Vec::new();
        for number in 0..5_u8 {
            client.send(&[number]).unwrap();
            let mut answer = [0; 16];
            let length = client.recv(&mut answer).unwrap();
            assert_eq!(answer[1..length], [number]);
            names.push(answer[0]);
        }
        names.dedup();
        assert_eq!(names.len(), 1, "one flow, one endpoint");
        seen.push(char::from(names[0]));
    }
    assert!(seen.contains('a') && seen.contains('b'), "{seen}");
    assert!(
        servers
            .iter()
            .all(|&server| pool.counts(server).inactive == 2)
    );
}

#[test]
fn a_taken_port_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut relay = relay();
    let pool = pool("rr", None);
    let result = relay.open(Transport::Tcp, taken.local_addr().unwrap(), route(&pool));
    let error = result.unwrap_err().to_string();
    let process = format!("(process {})", std::process::id());
    assert!(
        error.starts_with("address in use by ") && error.ends_with(&process),
        "{error}"
    );
}

#[test]
fn stopping_waits_for_connections_within_a_bound() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    // The bound is far away for the client that leaves, and near for the one that stays.
    for (keeps_open, bound) in [(false, PATIENCE), (true, Duration::from_secs(2))] {
        let mut relay = relay();
        let (address, _listening) = open(&mut relay, &pool);
        let mut client = connect(address);
        greeting(&mut client);
        let start = Instant::now();
        let thread = std::thread::spawn(move || {
            relay.stop(bound);
            start.elapsed()
        });
        if keeps_open {
            assert!(thread.join().unwrap() >= bound);
            continue;
        }
        std::thread::sleep(Duration::from_millis(200));
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
        drop(client);
        assert!(thread.join().unwrap() < bound);
    }
}
