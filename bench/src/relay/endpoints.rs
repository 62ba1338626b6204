//! The endpoints behind all relays: one thread that echoes requests and datagrams, and sends bytes without end.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::poller::{Poller, Ready, ready};
use super::train;

/// The addresses of the endpoints.
pub(super) const ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// The port whose connections are echoed.
pub(super) const ECHO: u16 = 7001;
/// The port that sends to each connection until it is closed.
pub(super) const SOURCE: u16 = 7002;
/// The port whose datagrams are echoed.
pub(super) const DATAGRAMS: u16 = 7003;

/// The interval in which the thread checks whether the benchmark is over.
const CHECK: Duration = Duration::from_millis(100);

/// The bytes that a source writes in one system call.
const CHUNK: usize = 256 * 1024;

/// The sockets of all endpoints, by descriptor.
#[derive(Debug)]
pub(super) struct Endpoints {
    poller: Poller,
    sockets: Vec<Option<EndpointSocket>>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum EndpointSocket {
    EchoListener(TcpListener),
    SourceListener(TcpListener),
    Echo(TcpStream),
    Source(TcpStream),
    Datagrams(UdpSocket),
}

impl Endpoints {
    /// Listens at all ports of all endpoints.
    pub(super) fn bind() -> io::Result<Self> {
        let mut endpoints = Self {
            poller: Poller::new()?,
            sockets: Vec::new(),
            buffer: vec![0; CHUNK],
        };
        for address in ADDRESSES {
            let echo = TcpListener::bind(SocketAddrV4::new(address, ECHO))?;
            endpoints.listen(EndpointSocket::EchoListener(echo))?;
            let source = TcpListener::bind(SocketAddrV4::new(address, SOURCE))?;
            endpoints.listen(EndpointSocket::SourceListener(source))?;
            let datagrams = UdpSocket::bind(SocketAddrV4::new(address, DATAGRAMS))?;
            train::accept_trains(&datagrams)?;
            endpoints.add(EndpointSocket::Datagrams(datagrams))?;
        }
        Ok(endpoints)
    }

    /// Serves until `is_over` is true.
    pub(super) fn serve(mut self, is_over: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            self.poller.wait(&mut events, CHECK)?;
            for event in &events {
                self.proceed(ready(event))?;
            }
        }
        Ok(())
    }

    fn listen(&mut self, socket: EndpointSocket) -> io::Result<()> {
        if let EndpointSocket::EchoListener(listener) | EndpointSocket::SourceListener(listener) =
            &socket
        {
            // std listens with a backlog of 128; thousands of clients connect at once.
            rustix::net::listen(listener, 4_096)?;
        }
        self.add(socket)
    }

    fn add(&mut self, socket: EndpointSocket) -> io::Result<()> {
        let (descriptor, flags) = match &socket {
            EndpointSocket::EchoListener(listener) | EndpointSocket::SourceListener(listener) => {
                listener.set_nonblocking(true)?;
                (listener.as_raw_fd(), EventFlags::IN)
            }
            EndpointSocket::Echo(stream) => (stream.as_raw_fd(), EventFlags::IN),
            EndpointSocket::Source(stream) => (stream.as_raw_fd(), EventFlags::OUT),
            EndpointSocket::Datagrams(datagrams) => (datagrams.as_raw_fd(), EventFlags::IN),
        };
        let key = usize::try_from(descriptor).map_err(io::Error::other)?;
        match &socket {
            EndpointSocket::EchoListener(it) | EndpointSocket::SourceListener(it) => {
                self.poller.add(it, key, flags)?;
            }
            EndpointSocket::Echo(it) | EndpointSocket::Source(it) => {
                it.set_nonblocking(true)?;
                it.set_nodelay(true)?;
                self.poller.add(it, key, flags | EventFlags::RDHUP)?;
            }
            EndpointSocket::Datagrams(it) => self.poller.add(it, key, flags)?,
        }
        if self.sockets.len() <= key {
            self.sockets.resize_with(key + 1, || None);
        }
        self.sockets[key] = Some(socket);
        Ok(())
    }

    fn proceed(&mut self, Ready { key, flags }: Ready) -> io::Result<()> {
        let Some(Some(socket)) = self.sockets.get_mut(key) else {
            return Ok(());
        };
        let is_open = match socket {
            EndpointSocket::EchoListener(listener) => {
                return match listener.accept() {
                    Ok((stream, _)) => self.add(EndpointSocket::Echo(stream)),
                    Err(_) => Ok(()),
                };
            }
            EndpointSocket::SourceListener(listener) => {
                return match listener.accept() {
                    Ok((stream, _)) => self.add(EndpointSocket::Source(stream)),
                    Err(_) => Ok(()),
                };
            }
            EndpointSocket::Echo(stream) => echo(stream, &mut self.buffer),
            EndpointSocket::Source(stream) => {
                !flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR)
                    && is_usable(stream.write(&self.buffer))
            }
            EndpointSocket::Datagrams(datagrams) => {
                let train = match train::receive(datagrams, &mut self.buffer) {
                    Ok(train) => train,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error),
                };
                return train::send(
                    datagrams,
                    &self.buffer[..train.bytes],
                    train.size,
                    train.sender,
                );
            }
        };
        if !is_open {
            self.sockets[key] = None;
        }
        Ok(())
    }
}

/// Sends a client's bytes back. Returns whether the connection stays open.
fn echo(stream: &mut TcpStream, buffer: &mut [u8]) -> bool {
    match stream.read(buffer) {
        Ok(0) => false,
        Ok(length) => stream.write_all(&buffer[..length]).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn is_usable(result: io::Result<usize>) -> bool {
    result.map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
}
