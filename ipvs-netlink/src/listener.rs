//! A netlink socket that hears what the kernel tells everybody.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::Socket;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, recvfrom, sockopt};

use crate::batch::HEADER;
use crate::error::{Error, Result};

/// The kernel fills notifications up to a page or a few; this is far more.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// What we ask the kernel to queue for us; granted in full only with CAP_NET_ADMIN.
const SOCKET_BUFFER: usize = 4 * 1024 * 1024;

/// Hears the notifications of multicast groups of one netlink family.
///
/// Readable (as a file descriptor) when there are some.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    buffer: Vec<u8>,
}

/// A notification.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a> {
    /// Its type.
    pub kind: u16,
    /// The socket whose request it tells of ([`crate::transport::Transport::port`]); 0 for the
    /// kernel itself.
    pub port: u32,
    /// Everything after its header.
    pub payload: &'a [u8],
}

impl Listener {
    /// Joins `groups` of the family `protocol`, in the caller's network namespace.
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
        for &group in groups {
            socket.add_membership(group).map_err(failed)?;
        }
        Ok(Self {
            socket,
            buffer: vec![0; RECEIVE_BUFFER],
        })
    }

    /// Takes one datagram of notifications without waiting; says whether there was one.
    ///
    /// # Errors
    /// [`Error::AnswersLost`] when the kernel had more to tell than fitted; later ones follow.
    pub fn read(&mut self, mut each: impl FnMut(Notice<'_>)) -> Result<bool> {
        let (length, sender) = loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            match recvfrom(self.socket.as_fd(), &mut self.buffer[..], flags) {
                Ok((_, length, sender)) => break (length, sender),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::NOBUFS) => return Err(Error::AnswersLost),
                Err(errno) => return Err(Error::socket("receiving notifications")(errno)),
            }
        };
        if length > self.buffer.len() {
            return Err(Error::AnswersLost);
        }
        let from_kernel = sender
            .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
            .is_some_and(|sender| sender.pid() == 0);
        let mut rest = &self.buffer[..length];
        while from_kernel && rest.len() >= HEADER {
            let Ok(message) = NetlinkBuffer::new_checked(rest) else {
                return Err(Error::malformed("a notification overruns its datagram"));
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
