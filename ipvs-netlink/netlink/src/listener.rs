//! A netlink socket that receives notifications of multicast groups.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::Socket;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, recvfrom, sockopt};

use crate::batch::HEADER;
use crate::error::{Error, Result};

/// The size of the buffer for one datagram; a notification has a few pages at most.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// The requested size of the socket's receive queue; granted in full only with CAP_NET_ADMIN.
///
/// If the queue is full, the kernel drops notifications, and the caller must read everything back.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// Receives the notifications of multicast groups of one netlink family.
///
/// Its file descriptor is readable when notifications are queued.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// The last received datagram.
    buffer: Vec<u8>,
}

/// A notification.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a> {
    /// The message type (`nlmsg_type`).
    pub kind: u16,
    /// The port of the socket whose request caused the change; 0 if the kernel caused it.
    ///
    /// [`crate::transport::Transport::port`] returns the port of our own socket.
    pub port: u32,
    /// The bytes after the netlink header.
    pub payload: &'a [u8],
}

impl Listener {
    /// Opens a socket in the caller's network namespace and joins `groups` of `protocol`.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open(protocol: isize, groups: &[u32]) -> Result<Self> {
        let failed = |source| Error::Socket {
            doing: "opening a netlink socket for notifications",
            source,
        };
        let mut socket = Socket::new(protocol).map_err(failed)?;
        socket.bind_auto().map_err(failed)?;
        socket.set_non_blocking(true).map_err(failed)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, SOCKET_BUFFER)
                .map_err(Error::socket("setting the receive buffer"))?;
        }
        // Joined after the queue is enlarged: the first burst would overflow the default size.
        for &group in groups {
            socket.add_membership(group).map_err(failed)?;
        }
        Ok(Self {
            socket,
            // Not filled with zeros: the part that no datagram needs takes no resident memory.
            buffer: Vec::with_capacity(RECEIVE_BUFFER),
        })
    }

    /// Receives one datagram without waiting; returns whether one was queued.
    ///
    /// Calls `each` with every notification in it.
    ///
    /// # Errors
    /// [`Error::AnswersLost`] if the kernel dropped notifications because the queue was full. The
    /// next call continues with later ones.
    pub fn read(&mut self, mut each: impl FnMut(Notice<'_>)) -> Result<bool> {
        let (length, sender) = loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            self.buffer.clear();
            let room = spare_capacity(&mut self.buffer);
            match recvfrom(self.socket.as_fd(), room, flags) {
                Ok((_, length, sender)) => break (length, sender),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::NOBUFS) => return Err(Error::AnswersLost),
                Err(errno) => return Err(Error::socket("receiving notifications")(errno)),
            }
        };
        if length > self.buffer.len() {
            // The end of the datagram is lost, as if the queue had been full.
            return Err(Error::AnswersLost);
        }
        // Any process may send a datagram to this socket; only the kernel's port is 0.
        let from_kernel = sender
            .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
            .is_some_and(|sender| sender.pid() == 0);
        let mut rest = &self.buffer[..];
        while from_kernel && rest.len() >= HEADER {
            let Ok(message) = NetlinkBuffer::new_checked(rest) else {
                return Err(Error::malformed(
                    "a notification is longer than its datagram",
                ));
            };
            each(Notice {
                kind: message.message_type(),
                port: message.port_number(),
                payload: message.payload(),
            });
            let length = message.length() as usize;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(true)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
