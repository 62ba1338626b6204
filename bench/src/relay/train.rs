//! Trains of datagrams: several of one size and one destination, in one system call (GSO and GRO).
//!
//! With trains the load generator costs less than the relays, so the relays decide the rate.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::cmsg_space;
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};

/// The maximum length of a train in bytes.
pub(super) const MAX_BYTES: usize = 65_536;

/// A received train.
#[derive(Clone, Copy, Debug)]
pub(super) struct Train {
    pub(super) bytes: usize,
    /// The size of each datagram; the last one may be shorter.
    pub(super) size: u16,
    pub(super) sender: Option<SocketAddrV4>,
}

impl Train {
    /// Returns the number of datagrams.
    pub(super) fn datagrams(self) -> usize {
        self.bytes.div_ceil(usize::from(self.size.max(1))).max(1)
    }
}

/// Lets the kernel deliver trains to `socket`.
pub(super) fn accept_trains(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, UdpGroSegment, &true)?)
}

/// Receives a train, or a single datagram.
pub(super) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Train> {
    let mut space = cmsg_space!(i32);
    let mut slices = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrIn>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let size = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::UdpGroSegments(size) => u16::try_from(size).ok(),
        _ => None,
    });
    Ok(Train {
        bytes: message.bytes,
        size: size.unwrap_or_else(|| u16::try_from(message.bytes).unwrap_or(u16::MAX)),
        sender: message.address.map(SocketAddrV4::from),
    })
}

/// Sends `bytes` as datagrams of `size` bytes, to `receiver` or to the socket's peer.
pub(super) fn send(
    socket: &UdpSocket,
    bytes: &[u8],
    size: u16,
    receiver: Option<SocketAddrV4>,
) -> io::Result<()> {
    let receiver = receiver.map(SockaddrIn::from);
    let segments = [ControlMessage::UdpGsoSegments(&size)];
    let control = match bytes.len() > usize::from(size) {
        true => &segments[..],
        false => &[],
    };
    let sent = sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        control,
        MsgFlags::MSG_DONTWAIT,
        receiver.as_ref(),
    );
    match sent {
        // A full buffer drops the train; the sender of the load repeats it.
        Ok(_) | Err(nix::Error::EAGAIN | nix::Error::ENOBUFS | nix::Error::ECONNREFUSED) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
