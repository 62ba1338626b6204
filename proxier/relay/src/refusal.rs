//! ICMP "port unreachable" to UDP clients that no endpoint serves.
//!
//! The kernel answers so at a port without a socket. At a frontend it cannot, because the relay has a socket there,
//! so the relay does. That needs CAP_NET_RAW; without it, such clients get no answer.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// The maximum number of messages of a worker in a second, because a client's address may be forged. The kernel's
/// own limit is 1,000 (`net.ipv4.icmp_msgs_per_sec`).
const PER_SECOND: u32 = 1_000;

/// The maximum length of the part of a datagram that a message quotes. The message stays below 576 bytes.
const QUOTED: usize = 500;

/// The protocol number of UDP.
const UDP: u8 = 17;

/// The time to live of a quoted header.
const HOPS: u8 = 64;

/// The messages that a worker sent lately.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    second: u64,
    sent: u32,
}

impl Refusals {
    /// Answers `datagram`, which `client` sent to `frontend`.
    ///
    /// Does nothing without the privilege and above the limit: a client must expect that an answer is lost.
    pub(crate) fn send(
        &mut self,
        frontend: SocketAddr,
        client: SocketAddr,
        datagram: &[u8],
        now: Duration,
    ) {
        if self.take(now) {
            let _ = send(frontend, client, datagram);
        }
    }

    /// Returns whether one more message may be sent.
    fn take(&mut self, now: Duration) -> bool {
        if self.second != now.as_secs() {
            *self = Self {
                second: now.as_secs(),
                sent: 0,
            };
        }
        self.sent += 1;
        self.sent <= PER_SECOND
    }
}

/// Sends a message from the address of `frontend`.
fn send(frontend: SocketAddr, client: SocketAddr, datagram: &[u8]) -> io::Result<()> {
    let (protocol, message) = match (frontend, client) {
        (SocketAddr::V4(frontend), SocketAddr::V4(client)) => {
            (Protocol::ICMPV4, message_v4(frontend, client, datagram))
        }
        (SocketAddr::V6(frontend), SocketAddr::V6(client)) => {
            (Protocol::ICMPV6, message_v6(frontend, client, datagram))
        }
        _ => return Ok(()),
    };
    let domain = Domain::for_address(frontend);
    let socket = Socket::new(domain, Type::RAW.nonblocking(), Some(protocol))?;
    let with_no_port = |mut address: SocketAddr| {
        address.set_port(0);
        address
    };
    socket.bind(&with_no_port(frontend).into())?;
    socket.send_to(&message, &with_no_port(client).into())?;
    Ok(())
}

/// Returns the message of ICMP (RFC 792).
fn message_v4(frontend: SocketAddrV4, client: SocketAddrV4, datagram: &[u8]) -> Vec<u8> {
    const UNREACHABLE: u8 = 3;
    const PORT: u8 = 3;
    let total = length(20 + 8 + datagram.len());
    let mut header = [0; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&total);
    header[8] = HOPS;
    header[9] = UDP;
    header[12..16].copy_from_slice(&client.ip().octets());
    header[16..20].copy_from_slice(&frontend.ip().octets());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    let mut message = vec![UNREACHABLE, PORT, 0, 0, 0, 0, 0, 0];
    message.extend(header);
    quote(&mut message, frontend.port(), client.port(), datagram);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

/// Returns the message of ICMPv6 (RFC 4443), without the checksum, which the kernel adds.
fn message_v6(frontend: SocketAddrV6, client: SocketAddrV6, datagram: &[u8]) -> Vec<u8> {
    const UNREACHABLE: u8 = 1;
    const PORT: u8 = 4;
    let mut message = vec![UNREACHABLE, PORT, 0, 0, 0, 0, 0, 0];
    message.extend([0x60, 0, 0, 0]);
    message.extend(length(8 + datagram.len()));
    message.extend([UDP, HOPS]);
    message.extend(client.ip().octets());
    message.extend(frontend.ip().octets());
    quote(&mut message, frontend.port(), client.port(), datagram);
    message
}

/// Adds the UDP header, with which the client's kernel finds the socket, and the beginning of the datagram.
fn quote(message: &mut Vec<u8>, frontend: u16, client: u16, datagram: &[u8]) {
    message.extend(client.to_be_bytes());
    message.extend(frontend.to_be_bytes());
    message.extend(length(8 + datagram.len()));
    // Without a checksum.
    message.extend([0, 0]);
    message.extend(datagram.iter().take(QUOTED));
}

/// Returns a length as headers have it. No datagram is longer than the field.
fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes()
}

/// Returns the checksum of the internet protocols (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2);
    let words =
        words.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| low.into()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [_, _, high, low] = (!sum).to_be_bytes();
    [high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_quotes_the_datagram_that_it_answers() {
        let frontend: SocketAddrV4 = "192.0.2.1:53".parse().unwrap();
        let client: SocketAddrV4 = "198.51.100.7:4000".parse().unwrap();
        let message = message_v4(frontend, client, b"abc");
        assert_eq!(message[..2], [3, 3]);
        // A checksum over bytes with their checksum is 0.
        assert_eq!(checksum(&message), [0, 0]);
        let (header, datagram) = message[8..].split_at(20);
        assert_eq!(checksum(header), [0, 0]);
        assert_eq!(header[..4], [0x45, 0, 0, 31]);
        assert_eq!(header[12..], [198, 51, 100, 7, 192, 0, 2, 1]);
        assert_eq!(datagram, b"\x0f\xa0\0\x35\0\x0b\0\0abc");

        let frontend: SocketAddrV6 = "[2001:db8::1]:53".parse().unwrap();
        let client: SocketAddrV6 = "[2001:db8::2]:4000".parse().unwrap();
        let message = message_v6(frontend, client, &[b'x'; 60_000]);
        assert_eq!(message[..2], [1, 4]);
        assert_eq!(message[8..16], [0x60, 0, 0, 0, 0xea, 0x68, UDP, HOPS]);
        assert_eq!(message[16..32], client.ip().octets());
        assert_eq!(message[32..48], frontend.ip().octets());
        assert_eq!(message.len(), 8 + 40 + 8 + QUOTED);
    }

    #[test]
    fn a_worker_sends_a_limited_number_of_messages_in_a_second() {
        let mut refusals = Refusals::default();
        let taken = |refusals: &mut Refusals, millis| {
            let at = Duration::from_millis(millis);
            (0..2 * PER_SECOND).filter(|_| refusals.take(at)).count()
        };
        assert_eq!(taken(&mut refusals, 5_100), PER_SECOND as usize);
        assert_eq!(taken(&mut refusals, 5_900), 0);
        assert_eq!(taken(&mut refusals, 6_000), PER_SECOND as usize);
    }
}
