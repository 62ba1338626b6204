//! What clients outside the source ranges get.

use std::io::ErrorKind;
use std::net::SocketAddr;

use net::{Family, Networks};
use relay::{Route, Transport};
use socket2::{Domain, Socket, Type};

use super::{add, endpoint, greeting, pool, relay, route, unused};

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
