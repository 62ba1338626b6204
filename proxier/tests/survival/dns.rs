//! A DNS client with one question.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use lab::net::{PatientStream, receive_within};

/// The protocol that carries a question.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// A header with one question and the bit "recursion desired", and the question: the IPv4 address of
/// `who.test` (RFC 1035, section 4.1).
const QUESTION: &[u8] = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03who\x04test\0\0\x01\0\x01";

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks `server` and returns the address in its answer.
pub(crate) fn ask(server: SocketAddr, transport: Transport) -> io::Result<Ipv4Addr> {
    let mut answer = [0; 512];
    let length = match transport {
        Transport::Udp => {
            let any: IpAddr = match server {
                SocketAddr::V4(_) => [0; 4].into(),
                SocketAddr::V6(_) => [0_u8; 16].into(),
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(server)?;
            socket.send(QUESTION)?;
            receive_within(&socket, &mut answer, PATIENCE)?.0
        }
        Transport::Tcp => {
            let mut stream = PatientStream::connect(server, PATIENCE)?;
            let length = u16::try_from(QUESTION.len()).unwrap();
            stream.write_all(&[&length.to_be_bytes(), QUESTION].concat())?;
            let mut length = [0; 2];
            stream.read_exact(&mut length)?;
            let length = usize::from(u16::from_be_bytes(length));
            stream.read_exact(&mut answer[..length])?;
            length
        }
    };
    // The answer has one record, which ends with the address.
    let address = answer[..length].last_chunk::<4>().copied();
    Ok(address.unwrap().into())
}
