//! Connections and flows that carry nothing for a time.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use relay::{Handling, Route, Transport};

use super::{
    PATIENCE, add, connect, datagram_endpoint, endpoint, eventually, greeting, open, pool, relay,
    route, unused,
};

/// An idle timeout of a Service. The relay looks for idle connections every ten seconds. It is longer than a
/// client that talks five times a second stands still on a busy machine.
const IDLE: Duration = Duration::from_secs(28);

fn handling() -> Handling {
    Handling {
        idle: Some(IDLE),
        ..Handling::default()
    }
}

#[test]
fn a_silent_connection_ends_at_the_idle_timeout_and_an_active_one_stays() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay();
    let address = unused();
    let route = Route {
        handling: handling(),
        ..route(&pool)
    };
    let _listening = relay.open(Transport::Tcp, address, route).unwrap();
    // 27.1 s before the third look, so that seconds of 28 differ then: whoever counts those ends it too early.
    std::thread::sleep(Duration::from_millis(2_900));
    let [mut silent, mut active] = [connect(address), connect(address)];
    let start = Instant::now();
    assert_eq!([&mut silent, &mut active].map(greeting), ['a', 'a']);
    silent
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    loop {
        active.write_all(b"?").unwrap();
        assert_eq!(greeting(&mut active), '?');
        match silent.read(&mut [0; 1]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break;
            }
            Ok(length) => panic!("{length} bytes of a silent connection"),
        }
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(start.elapsed() >= IDLE);
}

/// Sends a datagram and waits for its answer.
fn ask(client: &UdpSocket) -> bool {
    client.send(b"?").is_ok() && client.recv(&mut [0; 16]).is_ok()
}

#[test]
fn a_silent_flow_ends_at_the_idle_timeout_and_an_active_one_stays() {
    let pool = pool("rr", None);
    let endpoint = datagram_endpoint();
    add(&pool, endpoint);
    let mut relay = relay();
    let address = unused();
    let route = Route {
        handling: handling(),
        ..route(&pool)
    };
    let _listening = relay.open(Transport::Udp, address, route).unwrap();
    let [silent, active] = [(); 2].map(|()| {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.connect(address).unwrap();
        assert!(ask(&client));
        client
    });
    assert_eq!(pool.counts(endpoint).inactive, 2);
    eventually(|| {
        assert!(ask(&active));
        pool.counts(endpoint).inactive == 1
    });
    // The client does not notice.
    assert!(ask(&silent));
    assert_eq!(pool.counts(endpoint).inactive, 2);
}

/// Returns for each established connection whose local or remote end is `address` whether the kernel will
/// probe its peer: whether its timer in `/proc/net/tcp` is that of keepalive.
fn probed(column: usize, address: SocketAddr) -> Vec<bool> {
    let port = format!(":{:04X}", address.port());
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_established = |line: &Vec<&str>| line[column].ends_with(&port) && line[3] == "01";
    let lines = lines.filter(is_established);
    lines.map(|line| line[5].starts_with("02:")).collect()
}

/// Both sides are probed, so that a peer that has vanished does not keep a connection for the idle timeout.
#[test]
fn the_peers_of_a_silent_connection_are_probed() {
    const LOCAL: usize = 1;
    const REMOTE: usize = 2;
    let pool = pool("rr", None);
    let server = endpoint("a");
    add(&pool, server);
    let mut relay = relay();
    let (address, _listening) = open(&mut relay, &pool);
    let mut client = connect(address);
    assert_eq!(greeting(&mut client), 'a');
    let relays_sockets = || [probed(LOCAL, address), probed(REMOTE, server)];
    assert_eq!(relays_sockets(), [[false], [false]]);
    // Half a minute of silence, and the time between two looks.
    let are_probed = lab::await_true(Duration::from_millis(100), || {
        relays_sockets() == [[true], [true]]
    });
    assert!(are_probed, "{:?}", relays_sockets());
    client.write_all(b"?").unwrap();
    assert_eq!(greeting(&mut client), '?');
}
