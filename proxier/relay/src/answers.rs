//! Answers of endpoints to clients. One system call sends many of them.
//!
//! Each flow has a socket of its own to its endpoint, but the answers of all flows leave from the
//! socket of their frontend. So answers wait until the worker has handled all events that woke it
//! up.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;

use rustix::io::Errno;
use rustix::net::{
    MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _, sendmmsg,
};

use crate::datagrams::DatagramSocket;

/// The maximum number of waiting answers.
const MOST: usize = 32;

/// With this number of waiting bytes, no further answer waits.
const MANY_BYTES: usize = 64 * 1024;

/// The waiting answers of a worker, in their order.
#[derive(Debug)]
pub(crate) struct WaitingAnswers {
    answers: Vec<WaitingAnswer>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct WaitingAnswer {
    /// The key of the frontend's socket.
    frontend: usize,
    client: SocketAddr,
    place: Range<usize>,
}

impl WaitingAnswers {
    pub(crate) fn new() -> Self {
        Self {
            answers: Vec::with_capacity(MOST),
            bytes: Vec::new(),
        }
    }

    /// Returns whether the answers must be sent before another one is added.
    pub(crate) fn is_full(&self) -> bool {
        self.answers.len() == MOST || self.bytes.len() >= MANY_BYTES
    }

    /// Adds a datagram from a frontend to a client.
    pub(crate) fn add(&mut self, frontend: usize, client: SocketAddr, datagram: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.answers.push(WaitingAnswer {
            frontend,
            client,
            place: start..self.bytes.len(),
        });
    }

    /// Sends all answers. A full send buffer drops datagrams, as a full queue on the way does.
    pub(crate) fn send<'a>(&mut self, socket: impl Fn(usize) -> Option<&'a DatagramSocket>) {
        let Self { answers, bytes } = self;
        for run in answers.chunk_by(|one, next| one.frontend == next.frontend) {
            let frontend = run.first().map(|answer| answer.frontend);
            if let Some(socket) = frontend.and_then(&socket) {
                send(socket, run, bytes);
            }
        }
        answers.clear();
        bytes.clear();
    }
}

/// Sends the answers of one frontend.
fn send(socket: &DatagramSocket, answers: &[WaitingAnswer], bytes: &[u8]) {
    let slice = |answer: &WaitingAnswer| [IoSlice::new(&bytes[answer.place.clone()])];
    let slices: Vec<[IoSlice<'_>; 1]> = answers.iter().map(slice).collect();
    let clients: Vec<SocketAddrAny> = answers.iter().map(|it| it.client.as_any()).collect();
    let none = answers.iter().map(|_| SendAncillaryBuffer::default());
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> = none.collect();
    let parts = clients.iter().zip(&slices).zip(&mut controls);
    let messages =
        parts.map(|((client, slice), control)| MMsgHdr::new_with_addr(client, slice, control));
    let mut messages: Vec<MMsgHdr<'_>> = messages.collect();
    let mut rest = messages.as_mut_slice();
    while !rest.is_empty() {
        let done = match sendmmsg(socket.descriptor(), rest, SendFlags::DONTWAIT) {
            // At least one, so that the loop ends whatever the kernel returns.
            Ok(sent) => sent.max(1),
            Err(Errno::AGAIN | Errno::NOBUFS) => return,
            // The kernel stops at the first datagram that it refuses, for example because no route leads to its
            // client.
            Err(_) => 1,
        };
        rest = rest.get_mut(done..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use mio::net::UdpSocket;

    use super::*;

    #[test]
    fn answers_leave_from_their_frontends_and_one_that_is_refused_stops_no_other() {
        let socket = |host: &str| UdpSocket::bind(host.parse().unwrap()).unwrap();
        let frontends = ["127.0.0.1:0", "[::1]:0"].map(|host| {
            let frontend = socket(host);
            let address = frontend.local_addr().unwrap();
            (DatagramSocket::new(frontend, address), address)
        });
        let clients = ["127.0.0.1:0", "[::1]:0"].map(socket);
        let address = |client: &UdpSocket| client.local_addr().unwrap();
        let mut answers = WaitingAnswers::new();
        assert!(!answers.is_full());
        for round in 0..2 {
            let unreachable = "127.0.0.1:0".parse().unwrap();
            for (frontend, client, datagram) in [
                (0, address(&clients[0]), "first"),
                (0, unreachable, "refused"),
                (0, address(&clients[0]), ""),
                (1, address(&clients[1]), "other"),
                (7, address(&clients[0]), "of a frontend that is closed"),
                (0, address(&clients[0]), "last"),
            ] {
                answers.add(frontend, client, datagram.as_bytes());
            }
            answers.send(|key| frontends.get(key).map(|(socket, _)| socket));
            for (at, expected) in [(0, vec!["first", "", "last"]), (1, vec!["other"])] {
                let mut buffer = [0; 64];
                for text in expected {
                    let (length, from) = clients[at].recv_from(&mut buffer).unwrap();
                    assert_eq!(
                        (&buffer[..length], from),
                        (text.as_bytes(), frontends[at].1)
                    );
                }
                assert!(clients[at].recv_from(&mut buffer).is_err(), "{round}");
            }
        }
        for _ in 0..MOST {
            assert!(!answers.is_full());
            answers.add(0, address(&clients[0]), b"x");
        }
        assert!(answers.is_full());
    }
}
