//! Datagrams, many in one system call.
//!
//! `recvmmsg` takes what waits at a socket. Datagrams of one sender that follow each other are a train, which
//! passes through the kernel's network stack once (`UDP_SEGMENT`).

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd as _;

use mio::net::UdpSocket;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmsg,
};

/// The datagrams that are received at once.
const DATAGRAMS: usize = 32;

/// The bytes of a datagram, at most.
const LONGEST: usize = 64 * 1024;

/// The bytes of a train, at most: those of an IPv6 packet without its headers.
const LONGEST_TRAIN: usize = 65_487;

/// The datagrams of one call. A worker has one batch for all its sockets.
#[derive(Debug)]
pub(super) struct DatagramBatch {
    /// Only the pages that datagrams have filled take memory.
    buffer: Box<[u8]>,
    received: Vec<ReceivedDatagram>,
    /// The kernel stores the length of an address over that of its space, so each family has its own.
    v4: MultiHeaders<SockaddrStorage>,
    v6: MultiHeaders<SockaddrStorage>,
}

#[derive(Clone, Copy, Debug)]
struct ReceivedDatagram {
    length: usize,
    sender: Option<SocketAddr>,
}

/// The address family of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum SocketFamily {
    V4,
    V6,
}

impl SocketFamily {
    pub(super) fn of(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(_) => Self::V4,
            SocketAddr::V6(_) => Self::V6,
        }
    }
}

/// Whether a socket may have more datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoreDatagrams {
    Nothing,
    Perhaps,
}

impl DatagramBatch {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; DATAGRAMS * LONGEST].into(),
            received: Vec::with_capacity(DATAGRAMS),
            v4: MultiHeaders::preallocate(DATAGRAMS, None),
            v6: MultiHeaders::preallocate(DATAGRAMS, None),
        }
    }

    /// Replaces the datagrams by those that wait at `socket`.
    ///
    /// # Errors
    /// Those of the socket. No datagram was received then.
    pub(super) fn receive(
        &mut self,
        socket: &UdpSocket,
        family: SocketFamily,
    ) -> io::Result<MoreDatagrams> {
        self.received.clear();
        let headers = match family {
            SocketFamily::V4 => &mut self.v4,
            SocketFamily::V6 => &mut self.v6,
        };
        let mut chunks = self.buffer.chunks_mut(LONGEST);
        let mut slices: [[IoSliceMut<'_>; 1]; DATAGRAMS] =
            std::array::from_fn(|_| [IoSliceMut::new(chunks.next().unwrap_or_default())]);
        let flags = MsgFlags::MSG_DONTWAIT;
        let messages = match recvmmsg(socket.as_raw_fd(), headers, &mut slices, flags, None) {
            Ok(messages) => messages,
            Err(Errno::EAGAIN) => return Ok(MoreDatagrams::Nothing),
            Err(error) => return Err(error.into()),
        };
        self.received
            .extend(messages.map(|message| ReceivedDatagram {
                length: message.bytes,
                sender: message.address.and_then(|address| socket_address(&address)),
            }));
        // epoll(7): a socket that gave less than it was asked for is drained.
        Ok(match self.received.len() < DATAGRAMS {
            true => MoreDatagrams::Nothing,
            false => MoreDatagrams::Perhaps,
        })
    }

    /// Returns the datagrams in their order, in trains.
    pub(super) fn trains(&self) -> impl Iterator<Item = Train<'_>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = *self.received.get(next)?;
            let start = next;
            next += 1;
            let mut bytes = first.length;
            // A datagram that is shorter than the first one is the last of its train.
            let mut is_over = first.length == 0;
            while let Some(other) = self.received.get(next)
                && !is_over
                && other.sender == first.sender
                && (1..=first.length).contains(&other.length)
                && bytes + other.length <= LONGEST_TRAIN
            {
                bytes += other.length;
                is_over = other.length < first.length;
                next += 1;
            }
            Some(Train {
                sender: first.sender,
                start,
                datagrams: &self.received[start..next],
                buffer: &self.buffer,
            })
        })
    }
}

/// Datagrams of one sender and of one size; the last one may be shorter.
#[derive(Debug)]
pub(super) struct Train<'a> {
    /// Unknown only if the kernel reports an address of another family.
    pub(super) sender: Option<SocketAddr>,
    start: usize,
    datagrams: &'a [ReceivedDatagram],
    buffer: &'a [u8],
}

impl Train<'_> {
    /// Sends the train to `receiver`, or to the peer of a connected socket.
    ///
    /// # Errors
    /// Those of the socket. Datagrams may be lost then.
    pub(super) fn send(&self, socket: &UdpSocket, receiver: Option<SocketAddr>) -> io::Result<()> {
        let receiver = receiver.map(SockaddrStorage::from);
        let mut slices = [IoSlice::new(&[]); DATAGRAMS];
        for (slice, (place, datagram)) in slices.iter_mut().zip((self.start..).zip(self.datagrams))
        {
            let from = place * LONGEST;
            *slice = IoSlice::new(&self.buffer[from..from + datagram.length]);
        }
        let slices = &slices[..self.datagrams.len()];
        if let [first, _, ..] = self.datagrams {
            match send(socket, slices, u16::try_from(first.length).ok(), receiver) {
                // A datagram exceeds the MTU, or the kernel has no UDP_SEGMENT.
                Err(Errno::EINVAL | Errno::EMSGSIZE | Errno::EIO | Errno::EOPNOTSUPP) => {}
                other => return Ok(other?),
            }
        }
        for slice in slices {
            send(socket, &[*slice], None, receiver)?;
        }
        Ok(())
    }
}

/// Sends one datagram, or datagrams of `size` bytes.
fn send(
    socket: &UdpSocket,
    slices: &[IoSlice<'_>],
    size: Option<u16>,
    receiver: Option<SockaddrStorage>,
) -> Result<(), Errno> {
    let size = size.as_ref().map(ControlMessage::UdpGsoSegments);
    sendmsg(
        socket.as_raw_fd(),
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
mod tests {
    use super::*;

    fn socket(address: &str) -> UdpSocket {
        UdpSocket::bind(address.parse().unwrap()).unwrap()
    }

    /// Returns the lengths of the datagrams of each train.
    fn lengths(batch: &DatagramBatch) -> Vec<Vec<usize>> {
        let of = |train: Train<'_>| train.datagrams.iter().map(|it| it.length).collect();
        batch.trains().map(of).collect()
    }

    fn receive(batch: &mut DatagramBatch, socket: &UdpSocket) -> MoreDatagrams {
        let family = SocketFamily::of(socket.local_addr().unwrap());
        batch.receive(socket, family).unwrap()
    }

    #[test]
    fn a_train_ends_with_a_shorter_datagram_and_before_a_longer_one_or_another_sender() {
        let receiver = socket("127.0.0.1:0");
        let (one, other) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
        let address = receiver.local_addr().unwrap();
        for (sender, length) in [
            (&one, 300),
            (&one, 300),
            (&one, 200),
            (&one, 300),
            (&one, 0),
            (&one, 0),
            (&one, 301),
            (&other, 301),
        ] {
            sender.send_to(&vec![b'x'; length], address).unwrap();
        }
        let mut batch = DatagramBatch::new();
        assert_eq!(receive(&mut batch, &receiver), MoreDatagrams::Nothing);
        let expected: [&[usize]; 6] = [&[300, 300, 200], &[300], &[0], &[0], &[301], &[301]];
        assert_eq!(lengths(&batch), expected);
        let senders: Vec<_> = batch.trains().filter_map(|train| train.sender).collect();
        assert_eq!(senders.last(), other.local_addr().ok().as_ref());
        assert_eq!(senders.first(), one.local_addr().ok().as_ref());
    }

    #[test]
    fn a_train_arrives_as_its_datagrams_in_both_families_whatever_their_size() {
        let mut batch = DatagramBatch::new();
        // The families take turns, because the kernel overwrites the space of addresses. Two of the last
        // datagrams fill a train.
        for (host, length) in [
            ("[::1]:0", 1_200),
            ("127.0.0.1:0", 1_200),
            ("[::1]:0", 1),
            ("127.0.0.1:0", 30_000),
        ] {
            let (client, relay, endpoint) = (socket(host), socket(host), socket(host));
            client.connect(relay.local_addr().unwrap()).unwrap();
            for number in 0..4 {
                client.send(&vec![number; length]).unwrap();
            }
            receive(&mut batch, &relay);
            for train in batch.trains() {
                assert_eq!(train.sender, client.local_addr().ok());
                train.send(&relay, endpoint.local_addr().ok()).unwrap();
            }
            let mut buffer = vec![0; LONGEST];
            for number in 0..4 {
                assert_eq!(endpoint.recv(&mut buffer).unwrap(), length);
                assert_eq!(buffer[..length], vec![number; length]);
            }
            assert!(endpoint.recv(&mut buffer).is_err());
        }
    }

    #[test]
    fn a_full_batch_may_leave_datagrams() {
        let (sender, receiver) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        for _ in 0..=DATAGRAMS {
            sender.send(b"datagram").unwrap();
        }
        let mut batch = DatagramBatch::new();
        assert_eq!(receive(&mut batch, &receiver), MoreDatagrams::Perhaps);
        assert_eq!(receive(&mut batch, &receiver), MoreDatagrams::Nothing);
        assert_eq!(lengths(&batch), [[8]]);
    }
}
