//! The header of the PROXY protocol, with which an endpoint learns the address of a client.
//!
//! Source: `proxy-protocol.txt` in HAProxy's documentation, versions 1 and 2. The relay writes headers and
//! never parses any: bytes of clients and endpoints are payload.

use std::net::SocketAddr;

use net::ProxyProtocol;

/// The first bytes of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY: the addresses are those of the client's connection.
const PROXY: u8 = 0x21;
/// Version 2, command LOCAL: no addresses follow, and the endpoint uses those of its own connection.
const LOCAL: u8 = 0x20;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;

/// Returns the header of a connection of `client` to `frontend`.
///
/// Both addresses have one family. For addresses of different families, the header names no addresses.
pub(crate) fn encode(version: ProxyProtocol, client: SocketAddr, frontend: SocketAddr) -> Vec<u8> {
    match version {
        ProxyProtocol::V1 => text(client, frontend).into_bytes(),
        ProxyProtocol::V2 => binary(client, frontend),
    }
}

fn text(client: SocketAddr, frontend: SocketAddr) -> String {
    let family = match (client, frontend) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => "TCP4",
        (SocketAddr::V6(_), SocketAddr::V6(_)) => "TCP6",
        _ => return "PROXY UNKNOWN\r\n".to_owned(),
    };
    format!(
        "PROXY {family} {} {} {} {}\r\n",
        client.ip(),
        frontend.ip(),
        client.port(),
        frontend.port()
    )
}

fn binary(client: SocketAddr, frontend: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    match (client, frontend) {
        (SocketAddr::V4(client), SocketAddr::V4(frontend)) => {
            header.extend([PROXY, TCP_OVER_IPV4, 0, 12]);
            header.extend(client.ip().octets());
            header.extend(frontend.ip().octets());
        }
        (SocketAddr::V6(client), SocketAddr::V6(frontend)) => {
            header.extend([PROXY, TCP_OVER_IPV6, 0, 36]);
            header.extend(client.ip().octets());
            header.extend(frontend.ip().octets());
        }
        _ => {
            header.extend([LOCAL, UNSPECIFIED, 0, 0]);
            return header;
        }
    }
    header.extend(client.port().to_be_bytes());
    header.extend(frontend.port().to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Reads a header back, as an endpoint does. Returns the addresses and the bytes after the header.
    fn decode(bytes: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
        if let Some(rest) = bytes.strip_prefix(&SIGNATURE) {
            let (&[command, family, high, low], rest) = rest.split_first_chunk::<4>()?;
            let (addresses, rest) =
                rest.split_at_checked(u16::from_be_bytes([high, low]).into())?;
            assert_eq!(command, 0x21);
            let ip = |at: usize| -> Option<IpAddr> {
                Some(match family {
                    0x11 => <[u8; 4]>::try_from(addresses.get(at * 4..at * 4 + 4)?)
                        .ok()?
                        .into(),
                    0x21 => <[u8; 16]>::try_from(addresses.get(at * 16..at * 16 + 16)?)
                        .ok()?
                        .into(),
                    _ => return None,
                })
            };
            let (_, ports) = addresses.split_last_chunk::<4>()?;
            let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
            return Some(((ip(0)?, port(0)).into(), (ip(1)?, port(2)).into(), rest));
        }
        // An endpoint that reads lines must find the end within 107 bytes.
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        assert!(end + 2 <= 107);
        let line = std::str::from_utf8(&bytes[..end]).ok()?;
        let words: Vec<&str> = line.split(' ').collect();
        let ["PROXY", family, client, frontend, from, to] = words[..] else {
            return None;
        };
        let client: IpAddr = client.parse().ok()?;
        assert_eq!(family, if client.is_ipv4() { "TCP4" } else { "TCP6" });
        let frontend: IpAddr = frontend.parse().ok()?;
        let ports = (from.parse().ok()?, to.parse().ok()?);
        Some((
            (client, ports.0).into(),
            (frontend, ports.1).into(),
            &bytes[end + 2..],
        ))
    }

    #[test]
    fn headers_have_the_bytes_of_the_specification() {
        let (client, frontend) = (socket("192.0.2.7:40000"), socket("10.96.0.80:443"));
        assert_eq!(
            encode(ProxyProtocol::V1, client, frontend),
            b"PROXY TCP4 192.0.2.7 10.96.0.80 40000 443\r\n"
        );
        assert_eq!(
            encode(ProxyProtocol::V2, client, frontend),
            b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c\
              \xc0\x00\x02\x07\x0a\x60\x00\x50\x9c\x40\x01\xbb"
        );
        let (client, frontend) = (socket("[2001:db8::7]:1"), socket("[fd00::50]:65535"));
        assert_eq!(
            encode(ProxyProtocol::V1, client, frontend),
            b"PROXY TCP6 2001:db8::7 fd00::50 1 65535\r\n"
        );
    }

    #[test]
    fn addresses_of_different_families_are_not_named() {
        let (client, frontend) = (socket("192.0.2.7:1"), socket("[fd00::1]:2"));
        assert_eq!(
            encode(ProxyProtocol::V1, client, frontend),
            b"PROXY UNKNOWN\r\n"
        );
        let header = encode(ProxyProtocol::V2, client, frontend);
        assert_eq!(header[12..], [0x20, 0, 0, 0]);
    }

    fn address() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        let ports = || (any::<u16>(), any::<u16>());
        let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>(), ports())
            .prop_map(|(a, b, ports)| ((a, ports.0).into(), (b, ports.1).into()));
        let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>(), ports())
            .prop_map(|(a, b, ports)| ((a, ports.0).into(), (b, ports.1).into()));
        prop_oneof![v4, v6]
    }

    proptest! {
        /// Whatever the client sends next, the endpoint finds the addresses and all of the payload.
        #[test]
        fn an_endpoint_reads_addresses_and_payload_back(
            (client, frontend) in address(),
            is_text: bool,
            payload: Vec<u8>,
        ) {
            let version = if is_text { ProxyProtocol::V1 } else { ProxyProtocol::V2 };
            let mut bytes = encode(version, client, frontend);
            bytes.extend(&payload);
            prop_assert_eq!(decode(&bytes), Some((client, frontend, &payload[..])));
        }
    }
}
