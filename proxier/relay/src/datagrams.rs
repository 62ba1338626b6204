//! Datagrams, many in one message.
//!
//! Datagrams of one sender that the kernel has together are a train: it is received as one message (`UDP_GRO`), and
//! sent through the kernel's network stack in one pass (`UDP_SEGMENT`). Single datagrams that follow each other are
//! joined to a train, too.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use mio::net::UdpSocket;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv4RecvTtl, Ipv6RecvHopLimit, UdpGroSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
};

/// The maximum number of messages that are received in one turn of a socket.
const MESSAGES: usize = 32;

/// The maximum length of a message, in bytes.
const LONGEST: usize = 64 * 1024;

/// The distance of messages in the buffer. At multiples of 64 KiB, all of them would compete for a few lines
/// of the processor's caches.
const STRIDE: usize = LONGEST + 192;

/// The maximum length of a train, in bytes: an IPv6 packet without its headers.
const LONGEST_TRAIN: usize = 65_487;

/// A UDP socket, and how it receives.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    socket: UdpSocket,
    /// The only sender whose messages count; `None` for a frontend, which takes those of all clients.
    peer: Option<SocketAddr>,
}

impl DatagramSocket {
    /// Returns the socket of a frontend, whose address is of the family of `address`.
    pub(crate) fn new(socket: UdpSocket, address: SocketAddr) -> Self {
        // A kernel that does not tell the hops is no worse than a client that hides them.
        let _ = match address {
            SocketAddr::V4(_) => setsockopt(&socket, Ipv4RecvTtl, &true),
            SocketAddr::V6(_) => setsockopt(&socket, Ipv6RecvHopLimit, &true),
        };
        Self::of(socket, None)
    }

    /// Returns the socket, which is connected to `peer`.
    pub(crate) fn connected(socket: UdpSocket, peer: SocketAddr) -> Self {
        Self::of(socket, Some(peer))
    }

    fn of(socket: UdpSocket, peer: Option<SocketAddr>) -> Self {
        // A kernel without the option delivers each datagram of a train.
        let _ = setsockopt(&socket, UdpGroSegment, &true);
        Self { socket, peer }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends one datagram to the peer of a connected socket.
    ///
    /// # Errors
    /// Those of the socket.
    pub(crate) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send(datagram).map(drop)
    }
}

/// The messages of one turn. A worker has one batch for all its sockets.
#[derive(Debug)]
pub(crate) struct DatagramBatch {
    /// Only the pages that messages have filled take memory.
    buffer: Box<[u8]>,
    received: Vec<ReceivedMessage>,
    /// The only sender of the messages that count.
    peer: Option<SocketAddr>,
    /// For the size of a train's datagrams, and for its hops.
    control: Vec<u8>,
}

/// A datagram or a train.
#[derive(Clone, Copy, Debug)]
struct ReceivedMessage {
    length: usize,
    /// The size of each of its datagrams; the last one may be shorter.
    size: usize,
    sender: Option<SocketAddr>,
    /// The hops that it had left; `None` if the socket does not ask for them.
    hops: Option<u8>,
}

impl ReceivedMessage {
    fn is_train(&self) -> bool {
        self.length > self.size
    }
}

/// Whether a socket may have more datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoreDatagrams {
    Nothing,
    Perhaps,
}

impl DatagramBatch {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; MESSAGES * STRIDE].into(),
            received: Vec::with_capacity(MESSAGES),
            peer: None,
            control: cmsg_space!(i32, i32),
        }
    }

    /// Replaces the messages by those that wait at `socket`.
    ///
    /// # Errors
    /// Those of the socket. Nothing was received then.
    pub(crate) fn receive(&mut self, socket: &DatagramSocket) -> io::Result<MoreDatagrams> {
        self.received.clear();
        self.peer = socket.peer;
        for chunk in self.buffer.chunks_mut(STRIDE) {
            match receive(socket, &mut chunk[..LONGEST], &mut self.control) {
                Ok(message) => self.received.push(message),
                Err(Errno::EAGAIN) => return Ok(MoreDatagrams::Nothing),
                Err(error) if self.received.is_empty() => return Err(error.into()),
                // The endpoint's answer to the next message has this error again.
                Err(_) => break,
            }
        }
        Ok(MoreDatagrams::Perhaps)
    }

    /// Returns whether `message` is of the endpoint, if the socket is one for an endpoint.
    ///
    /// Until such a socket is connected, the kernel takes what any host sends to its port.
    fn counts(&self, message: &ReceivedMessage) -> bool {
        self.peer.is_none() || message.sender == self.peer
    }

    /// Returns the datagrams in their order, in trains.
    pub(crate) fn trains(&self) -> impl Iterator<Item = Train<'_>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let others = self.received.get(next..)?.iter();
            next += others.take_while(|it| !self.counts(it)).count();
            let first = *self.received.get(next)?;
            let start = next;
            next += 1;
            let mut bytes = first.length;
            // A datagram that is shorter than the first one is the last of its train.
            let mut is_over = first.length == 0 || first.is_train();
            while let Some(other) = self.received.get(next)
                && !is_over
                && other.sender == first.sender
                && !other.is_train()
                && (1..=first.length).contains(&other.length)
                && bytes + other.length <= LONGEST_TRAIN
            {
                bytes += other.length;
                is_over = other.length < first.length;
                next += 1;
            }
            Some(Train {
                sender: first.sender,
                hops: first.hops,
                size: first.size,
                start,
                messages: &self.received[start..next],
                buffer: &self.buffer,
            })
        })
    }
}

/// Datagrams of one sender and of one size; the last one may be shorter.
#[derive(Debug)]
pub(crate) struct Train<'a> {
    /// Unknown only if the kernel reports an address of another family.
    pub(crate) sender: Option<SocketAddr>,
    /// The hops that its first datagram had left, if the kernel tells.
    pub(crate) hops: Option<u8>,
    size: usize,
    start: usize,
    messages: &'a [ReceivedMessage],
    buffer: &'a [u8],
}

impl Train<'_> {
    /// Returns the bytes of a train of one datagram.
    pub(crate) fn single(&self) -> Option<&[u8]> {
        match self.messages {
            [message] if !message.is_train() => {
                let from = self.start * STRIDE;
                self.buffer.get(from..from + message.length)
            }
            _ => None,
        }
    }

    /// Returns the bytes of the first datagram.
    pub(crate) fn first(&self) -> &[u8] {
        let from = self.start * STRIDE;
        let length = self.messages.first().map_or(0, |it| it.length);
        &self.buffer[from..from + length.min(self.size)]
    }

    /// Sends the train to `receiver`, or to the peer of a connected socket.
    ///
    /// # Errors
    /// Those of the socket. Datagrams may be lost then.
    pub(crate) fn send(
        &self,
        socket: &DatagramSocket,
        receiver: Option<SocketAddr>,
    ) -> io::Result<()> {
        if let (Some(datagram), None) = (self.single(), receiver) {
            // Without the headers of `sendmsg`.
            return socket.send(datagram);
        }
        let receiver = receiver.map(SockaddrStorage::from);
        let mut slices = [IoSlice::new(&[]); MESSAGES];
        for (slice, (place, message)) in slices.iter_mut().zip((self.start..).zip(self.messages)) {
            let from = place * STRIDE;
            *slice = IoSlice::new(&self.buffer[from..from + message.length]);
        }
        let slices = &slices[..self.messages.len()];
        if !matches!(self.messages, [one] if !one.is_train()) {
            match send(socket, slices, u16::try_from(self.size).ok(), receiver) {
                // A datagram exceeds the MTU, or the kernel has no UDP_SEGMENT.
                Err(Errno::EINVAL | Errno::EMSGSIZE | Errno::EIO | Errno::EOPNOTSUPP) => {}
                other => return Ok(other?),
            }
        }
        for slice in slices {
            let mut rest: &[u8] = slice;
            // At least once, because an empty datagram is sent too.
            loop {
                let (datagram, others) = rest.split_at(self.size.min(rest.len()));
                send(socket, &[IoSlice::new(datagram)], None, receiver)?;
                if others.is_empty() {
                    break;
                }
                rest = others;
            }
        }
        Ok(())
    }
}

/// Receives one message.
fn receive(
    socket: &DatagramSocket,
    buffer: &mut [u8],
    control: &mut [u8],
) -> Result<ReceivedMessage, Errno> {
    let mut slices = [IoSliceMut::new(buffer)];
    let (from, flags) = (socket.socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let message = recvmsg::<SockaddrStorage>(from, &mut slices, Some(control), flags)?;
    let (mut size, mut hops) = (message.bytes, None);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::UdpGroSegments(of_each) => {
                size = usize::try_from(of_each).unwrap_or(size);
            }
            ControlMessageOwned::Ipv4Ttl(left) | ControlMessageOwned::Ipv6HopLimit(left) => {
                hops = u8::try_from(left).ok();
            }
            _ => {}
        }
    }
    Ok(ReceivedMessage {
        length: message.bytes,
        size,
        sender: message.address.as_ref().and_then(socket_address),
        hops,
    })
}

/// Sends one datagram, or datagrams of `size` bytes.
fn send(
    socket: &DatagramSocket,
    slices: &[IoSlice<'_>],
    size: Option<u16>,
    receiver: Option<SockaddrStorage>,
) -> Result<(), Errno> {
    let size = size.as_ref().map(ControlMessage::UdpGsoSegments);
    sendmsg(
        socket.socket.as_raw_fd(),
        slices,
        size.as_slice(),
        MsgFlags::MSG_DONTWAIT,
        receiver.as_ref(),
    )?;
    Ok(())
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*v4).into());
    }
    let v6 = address.as_sockaddr_in6()?;
    Some(SocketAddrV6::from(*v6).into())
}

#[cfg(test)]
mod tests;
