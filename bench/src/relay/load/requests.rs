//! Requests on kept connections, one at a time on each.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::event::epoll::EventFlags;

use super::{CHECK, Load, MESSAGE, connect};
use crate::relay::poller::{Poller, ready};

/// The number of connections.
const CONNECTIONS: usize = 64;

/// Clients that send the next request as soon as they have an answer.
#[derive(Debug)]
pub(in crate::relay) struct Requests {
    poller: Poller,
    /// Each connection, with the bytes of the answer that are missing.
    clients: Vec<(TcpStream, usize)>,
}

impl Requests {
    pub(in crate::relay) fn start(address: SocketAddrV4) -> anyhow::Result<Self> {
        let poller = Poller::new()?;
        let mut clients = Vec::with_capacity(CONNECTIONS);
        for key in 0..CONNECTIONS {
            let mut stream = connect(address)?;
            stream.set_nonblocking(true)?;
            poller.add(&stream, key, EventFlags::IN)?;
            stream.write_all(&MESSAGE)?;
            clients.push((stream, MESSAGE.len()));
        }
        Ok(Self { poller, clients })
    }
}

impl Load for Requests {
    fn run(&mut self, length: Duration) -> anyhow::Result<u64> {
        let (mut count, mut buffer) = (0, [0; MESSAGE.len()]);
        let mut events = Vec::new();
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.poller.wait(&mut events, CHECK)?;
            for event in &events {
                let (stream, missing) = &mut self.clients[ready(event).key];
                let read = stream.read(&mut buffer).context("reading an answer")?;
                if read == 0 {
                    bail!("the relay closed a connection");
                }
                *missing = missing.saturating_sub(read);
                if *missing == 0 {
                    count += 1;
                    stream.write_all(&MESSAGE).context("sending a request")?;
                    *missing = MESSAGE.len();
                }
            }
        }
        Ok(count)
    }
}
