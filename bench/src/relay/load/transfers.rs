//! Large transfers: each connection reads what an endpoint sends without end.

use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{CHECK, Load, connect};
use crate::relay::poller::{Poller, ready};

/// The number of connections.
const CONNECTIONS: usize = 4;

/// The bytes that a client reads in one system call.
const CHUNK: usize = 1 << 20;

/// Clients that read and discard.
#[derive(Debug)]
pub(in crate::relay) struct Transfers {
    poller: Poller,
    clients: Vec<TcpStream>,
    /// Never written: the kernel discards the bytes (`MSG_TRUNC`), so a client costs little.
    unused: Vec<u8>,
}

impl Transfers {
    pub(in crate::relay) fn start(address: SocketAddrV4) -> anyhow::Result<Self> {
        let poller = Poller::new()?;
        let mut clients = Vec::with_capacity(CONNECTIONS);
        for key in 0..CONNECTIONS {
            let stream = connect(address)?;
            stream.set_nonblocking(true)?;
            poller.add(&stream, key, EventFlags::IN)?;
            clients.push(stream);
        }
        let unused = vec![0; CHUNK];
        Ok(Self {
            poller,
            clients,
            unused,
        })
    }
}

impl Load for Transfers {
    fn run(&mut self, length: Duration) -> anyhow::Result<u64> {
        let (mut bytes, mut events) = (0, Vec::new());
        let end = Instant::now() + length;
        while Instant::now() < end {
            self.poller.wait(&mut events, CHECK)?;
            for event in &events {
                let stream = &self.clients[ready(event).key];
                let discard = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
                match rustix::net::recv(stream, &mut self.unused[..], discard) {
                    Ok((_, read)) => {
                        ensure!(read > 0, "the relay closed a transfer");
                        bytes += u64::try_from(read)?;
                    }
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(bytes)
    }
}
