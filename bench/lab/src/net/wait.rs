//! Waits that a standstill of the lab does not end.
//!
//! A host can leave the lab without a processor for longer than a time limit. A wait has [`PARTS`], so only one
//! of them is over before the peer could answer, and the others begin when the lab runs again.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt::socket_error},
};

use crate::cost::patience;

/// The number of parts of a wait.
const PARTS: u32 = 20;

/// Waits until one of `sockets` is ready, for `limit`, scaled by [`patience`]. Returns whether one is.
///
/// # Errors
/// Those of poll(2), except an interruption.
pub fn poll_within(sockets: &mut [PollFd<'_>], limit: Duration) -> io::Result<bool> {
    let part = Timespec::try_from(patience(limit) / PARTS).map_err(io::Error::other)?;
    for _ in 0..PARTS {
        match poll(sockets, Some(&part)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Connects the stream socket `socket`, which then blocks. It may take `limit`, scaled by [`patience`].
///
/// # Errors
/// [`TimedOut`](ErrorKind::TimedOut) after that time; the error of connect(2).
pub fn connect_within(
    socket: OwnedFd,
    address: SocketAddr,
    limit: Duration,
) -> io::Result<TcpStream> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    await_events(&mut [PollFd::new(&socket, PollFlags::OUT)], limit)?;
    socket_error(&socket)??;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(TcpStream::from(socket))
}

/// Receives a datagram that arrives within `limit`, scaled by [`patience`]. Returns its length and sender.
///
/// # Errors
/// [`TimedOut`](ErrorKind::TimedOut) if none arrives; the error that ICMP reported.
pub fn receive_within(
    socket: &UdpSocket,
    into: &mut [u8],
    limit: Duration,
) -> io::Result<(usize, SocketAddr)> {
    await_events(&mut [PollFd::new(socket, PollFlags::IN)], limit)?;
    socket.recv_from(into)
}

/// A connection. Each read waits for a time limit, scaled by [`patience`], and then fails with
/// [`TimedOut`](ErrorKind::TimedOut).
#[derive(Debug)]
pub struct PatientStream {
    stream: TcpStream,
    limit: Duration,
}

impl PatientStream {
    /// Returns `stream`, whose reads then may take `limit` each.
    pub fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit }
    }

    /// Connects to `address` over TCP from the calling thread's namespace. It may take `limit`, as may each read.
    ///
    /// # Errors
    /// Those of [`connect_within`].
    pub fn connect(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = socket_with(family, kind, flags, Some(ipproto::TCP))?;
        Ok(Self::new(connect_within(socket, address, limit)?, limit))
    }
}

impl AsRef<TcpStream> for PatientStream {
    fn as_ref(&self) -> &TcpStream {
        &self.stream
    }
}

impl From<PatientStream> for TcpStream {
    fn from(patient: PatientStream) -> Self {
        patient.stream
    }
}

impl Read for PatientStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        await_events(&mut [PollFd::new(&self.stream, PollFlags::IN)], self.limit)?;
        self.stream.read(into)
    }
}

impl Write for PatientStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Like [`poll_within`], but fails with [`TimedOut`](ErrorKind::TimedOut) if no socket is ready.
fn await_events(sockets: &mut [PollFd<'_>], limit: Duration) -> io::Result<()> {
    if poll_within(sockets, limit)? {
        Ok(())
    } else {
        Err(ErrorKind::TimedOut.into())
    }
}
