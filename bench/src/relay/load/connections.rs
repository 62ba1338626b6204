//! New connections, each for one request.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{CHECK, Load, MESSAGE};
use crate::relay::poller::{Poller, Ready, ready};

/// The number of connections at a time.
const CONNECTIONS: usize = 16;

/// Clients that connect, send one request, read the answer and close.
#[derive(Debug)]
pub(in crate::relay) struct Connections {
    address: SocketAddrV4,
    poller: Poller,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    has_asked: bool,
    missing: usize,
}

impl Connections {
    pub(in crate::relay) fn start(address: SocketAddrV4) -> anyhow::Result<Self> {
        let poller = Poller::new()?;
        let clients = (0..CONNECTIONS).map(|key| dial(address, &poller, key));
        let clients = clients.collect::<io::Result<_>>()?;
        Ok(Self {
            address,
            poller,
            clients,
        })
    }

    /// Continues with one client and returns whether its connection is complete.
    fn proceed(&mut self, Ready { key, flags }: Ready) -> anyhow::Result<bool> {
        let client = &mut self.clients[key];
        if flags.contains(EventFlags::OUT) && !client.has_asked {
            client.has_asked = true;
            client
                .stream
                .write_all(&MESSAGE)
                .context("sending a request")?;
        }
        if !flags.contains(EventFlags::IN) {
            return Ok(false);
        }
        let read = client.stream.read(&mut [0; MESSAGE.len()]);
        let read = read.context("reading an answer")?;
        ensure!(read > 0, "the relay closed a connection without an answer");
        client.missing = client.missing.saturating_sub(read);
        let is_complete = client.missing == 0;
        if is_complete {
            *client = dial(self.address, &self.poller, key)?;
        }
        Ok(is_complete)
    }
}

impl Load for Connections {
    fn run(&mut self, length: Duration) -> anyhow::Result<u64> {
        let (mut count, mut events) = (0, Vec::new());
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.poller.wait(&mut events, CHECK)?;
            for event in &events {
                count += u64::from(self.proceed(ready(event))?);
            }
        }
        Ok(count)
    }
}

fn dial(address: SocketAddrV4, poller: &Poller, key: usize) -> io::Result<Client> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    // Edge-triggered: a writable connection would otherwise be reported at every wait.
    let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
    poller.add(&socket, key, events)?;
    Ok(Client {
        stream: socket.into(),
        has_asked: false,
        missing: MESSAGE.len(),
    })
}
