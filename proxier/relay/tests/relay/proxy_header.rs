//! Endpoints get the header of the PROXY protocol; bytes of endpoints are payload.

use net::ProxyProtocol;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use relay::Handling;

use super::*;

/// Opens a frontend for one endpoint, which gets a header of `version`. Returns its address, and the endpoint's listener.
fn open_with_header(
    relay: &mut Relay,
    version: Option<ProxyProtocol>,
) -> (SocketAddr, Listening, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = pool("rr", None);
    add(&pool, listener.local_addr().unwrap());
    let address = unused();
    let route = Route {
        handling: Handling {
            proxy_protocol: version,
            idle: None,
        },
        ..route(&pool)
    };
    let listening = relay.open(Transport::Tcp, address, route).unwrap();
    (address, listening, listener)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn an_endpoint_learns_the_clients_address_before_the_first_byte() {
    let mut relay = relay();
    let (address, _listening, listener) = open_with_header(&mut relay, Some(ProxyProtocol::V1));
    let mut client = connect(address);
    let from = client.local_addr().unwrap();
    let mut server = accept(&listener);
    // The client has sent nothing yet: an endpoint that speaks first needs the header, too.
    let expected = format!(
        "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
        from.port(),
        address.port()
    );
    let mut header = vec![0; expected.len()];
    server.read_exact(&mut header).unwrap();
    assert_eq!(String::from_utf8(header).unwrap(), expected);
    client.write_all(b"payload").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut payload = String::new();
    server.read_to_string(&mut payload).unwrap();
    assert_eq!(payload, "payload");
}

#[test]
fn bytes_that_are_sent_at_once_follow_the_binary_header() {
    let mut relay = relay();
    let (address, _listening, listener) = open_with_header(&mut relay, Some(ProxyProtocol::V2));
    for _ in 0..50 {
        let mut client = connect(address);
        client.write_all(b"payload").unwrap();
        let from = client.local_addr().unwrap();
        let mut bytes = [0; 35];
        accept(&listener).read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
        assert_eq!(bytes[16..24], [127, 0, 0, 1, 127, 0, 0, 1]);
        assert_eq!(bytes[24..26], from.port().to_be_bytes());
        assert_eq!(bytes[26..28], address.port().to_be_bytes());
        assert_eq!(&bytes[28..], b"payload");
    }
}

/// Returns headers of both versions: whole, damaged at each byte, cut after each byte, and doubled.
fn headers() -> Vec<Vec<u8>> {
    let v1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec();
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\0\x01\0\x02".to_vec();
    let mut headers = Vec::new();
    for header in [v1, v2] {
        for cut in 0..header.len() {
            headers.push(header[..cut + 1].to_vec());
            let mut damaged = header.clone();
            damaged[cut] ^= 0x55;
            headers.push(damaged);
        }
        headers.push([header.clone(), header].concat());
    }
    assert!(headers.len() > 120);
    headers
}

/// They reach the client and the endpoint byte for byte, whether or not the relay adds a header of its own.
#[test]
fn headers_from_clients_and_endpoints_are_payload() {
    let mut relay = relay();
    for (version, added) in [
        (None, 0),
        (
            Some(ProxyProtocol::V1),
            "PROXY TCP4 127.0.0.1 127.0.0.1 ".len(),
        ),
        (Some(ProxyProtocol::V2), 28),
    ] {
        let (address, _listening, listener) = open_with_header(&mut relay, version);
        for payload in &headers() {
            let mut client = connect(address);
            client.write_all(payload).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut server = accept(&listener);
            server.write_all(payload).unwrap();
            let mut received = Vec::new();
            server.read_to_end(&mut received).unwrap();
            let own = received.len() - payload.len();
            assert!(own >= added && received.ends_with(payload), "{received:?}");
            drop(server);
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            assert_eq!(answer, *payload);
        }
    }
}

/// Returns what an endpoint or a client may write at once: parts of headers, their signatures, lengths that are
/// wrong, and other bytes.
fn write() -> impl Strategy<Value = Vec<u8>> {
    let text = "PROXY (TCP4|TCP6|UNKNOWN|SCTP) [0-9.:a-f]{0,40} [0-9.:a-f]{0,40} [0-9]{0,6} [0-9]{0,6}\r?\n";
    let address = (
        any::<u8>(),
        any::<u8>(),
        any::<u16>(),
        vec(any::<u8>(), 0..300),
    );
    let binary = address.prop_map(|(command, family, length, bytes)| {
        let signature = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        [
            signature,
            vec![command, family],
            length.to_be_bytes().to_vec(),
            bytes,
        ]
        .concat()
    });
    let known = proptest::sample::select(headers());
    let part = prop_oneof![
        text.prop_map(String::into_bytes),
        binary,
        known,
        vec(any::<u8>(), 0..40),
    ];
    vec(part, 1..3).prop_map(|parts| parts.concat())
}

/// Writes each of `writes` with a call of its own.
fn write_all(mut stream: &TcpStream, writes: &[Vec<u8>]) {
    for bytes in writes {
        stream.write_all(bytes).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn random_headers_from_clients_and_endpoints_are_payload() {
    let mut relay = relay();
    let versions = [None, Some(ProxyProtocol::V1), Some(ProxyProtocol::V2)];
    let frontends = versions.map(|version| open_with_header(&mut relay, version));
    let config = Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let case = (0..frontends.len(), vec(write(), 0..4), vec(write(), 0..4));
    let result = TestRunner::new(config).run(&case, |(frontend, asked, answered)| {
        let (address, _listening, listener) = &frontends[frontend];
        let client = connect(*address);
        let local = client.local_addr().unwrap();
        write_all(&client, &asked);
        let server = accept(listener);
        write_all(&server, &answered);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        { &server }.read_to_end(&mut up).unwrap();
        { &client }.read_to_end(&mut down).unwrap();
        let own = match versions[frontend] {
            None => Vec::new(),
            Some(ProxyProtocol::V1) => format!(
                "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
                local.port(),
                address.port()
            )
            .into_bytes(),
            Some(ProxyProtocol::V2) => [
                &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01"[..],
                &local.port().to_be_bytes(),
                &address.port().to_be_bytes(),
            ]
            .concat(),
        };
        prop_assert_eq!(up, [own, asked.concat()].concat());
        prop_assert_eq!(down, answered.concat());
        Ok(())
    });
    result.unwrap();
}
