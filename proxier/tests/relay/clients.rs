//! What single clients get: those outside the source ranges, and those of an endpoint that refuses datagrams.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use proxier::testing::model::{Family, Networks};
use proxier::testing::relay::{Route, Transport};
use socket2::{Domain, Socket, Type};

use super::{
    add, datagram_endpoint, endpoint, eventually, greeting, pool, relay, route, unused,
    unused_for_datagrams,
};

/// Connects from `source` and returns the name of the endpoint, or the error.
fn name_for(source: &str, address: SocketAddr) -> Result<char, ErrorKind> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let source: SocketAddr = format!("{source}:0").parse().unwrap();
    socket.bind(&source.into()).unwrap();
    socket.connect(&address.into()).map_err(|it| it.kind())?;
    let mut stream = std::net::TcpStream::from(socket);
    stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
    match stream.peek(&mut [0]) {
        Ok(0) => Err(ErrorKind::UnexpectedEof),
        Ok(_) => Ok(greeting(&mut stream)),
        Err(error) => Err(error.kind()),
    }
}

#[test]
fn clients_outside_the_source_ranges_are_reset() {
    let pool = pool("rr", None);
    add(&pool, endpoint("a"));
    let mut relay = relay();
    let address = unused();
    let restricted = Route {
        sources: Some(Networks::new(Family::V4, ["127.0.3.0/24".parse().unwrap()])),
        ..route(&pool)
    };
    let opened = relay.open(Transport::Tcp, address, restricted);
    let mut listening = opened.unwrap();
    assert_eq!(name_for("127.0.3.7", address), Ok('a'));
    assert_eq!(
        name_for("127.0.4.7", address),
        Err(ErrorKind::ConnectionReset)
    );
    relay.set_route(&mut listening, route(&pool)).unwrap();
    assert_eq!(name_for("127.0.4.7", address), Ok('a'));
}

#[test]
fn a_client_whose_endpoint_refuses_datagrams_gets_another_one() {
    let pool = pool("rr", None);
    // It has a port at which nothing receives.
    let silent = unused_for_datagrams();
    add(&pool, silent);
    add(&pool, datagram_endpoint());
    let mut relay = relay();
    let address = unused_for_datagrams();
    let _listening = relay.open(Transport::Udp, address, route(&pool)).unwrap();
    for _ in 0..4 {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let pause = Some(Duration::from_millis(50));
        client.set_read_timeout(pause).unwrap();
        client.connect(address).unwrap();
        eventually(|| client.send(b"?").is_ok() && client.recv(&mut [0; 16]).is_ok());
    }
}
