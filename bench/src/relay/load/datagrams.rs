//! Datagrams that endpoints echo.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::{CHECK, Load};
use crate::relay::poller::{Poller, ready};
use crate::relay::train::{self, MAX_BYTES};

/// After this time without an answer, the datagrams of a client count as lost.
const LOST: Duration = Duration::from_millis(100);

/// The kind of traffic.
#[derive(Clone, Copy, Debug)]
pub(in crate::relay) struct Traffic {
    clients: usize,
    /// The maximum number of unanswered datagrams of a client. All of them fit the receive buffer
    /// of one socket, so a relay need not drop any.
    window: usize,
    size: u16,
}

/// Many clients with one unanswered datagram each.
pub(in crate::relay) const QUESTIONS: Traffic = Traffic {
    clients: 64,
    window: 1,
    size: 100,
};

/// A few clients with many large datagrams, as in media or QUIC.
pub(in crate::relay) const STREAMS: Traffic = Traffic {
    clients: 4,
    window: 16,
    size: 1_200,
};

/// Clients that replace each answered datagram.
#[derive(Debug)]
pub(in crate::relay) struct Datagrams {
    traffic: Traffic,
    poller: Poller,
    clients: Vec<DatagramClient>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct DatagramClient {
    socket: UdpSocket,
    answered_at: Instant,
}

impl Datagrams {
    pub(in crate::relay) fn start(address: SocketAddrV4, traffic: Traffic) -> anyhow::Result<Self> {
        let poller = Poller::new()?;
        let mut clients = Vec::with_capacity(traffic.clients);
        for key in 0..traffic.clients {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(address)?;
            train::accept_trains(&socket)?;
            poller.add(&socket, key, EventFlags::IN)?;
            clients.push(DatagramClient {
                socket,
                answered_at: Instant::now(),
            });
        }
        let datagrams = Self {
            traffic,
            poller,
            clients,
            buffer: vec![0; MAX_BYTES],
        };
        for client in &datagrams.clients {
            datagrams.send(client, traffic.window)?;
        }
        Ok(datagrams)
    }

    fn send(&self, client: &DatagramClient, datagrams: usize) -> io::Result<()> {
        let size = self.traffic.size;
        let bytes = &self.buffer[..usize::from(size) * datagrams];
        train::send(&client.socket, bytes, size, None)
    }
}

impl Load for Datagrams {
    fn run(&mut self, length: Duration) -> anyhow::Result<u64> {
        let (mut count, mut events) = (0, Vec::new());
        let mut next_check = Instant::now() + LOST;
        let end = Instant::now() + length;
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(count);
            }
            self.poller.wait(&mut events, CHECK)?;
            for event in &events {
                let key = ready(event).key;
                let Ok(train) = train::receive(&self.clients[key].socket, &mut self.buffer) else {
                    continue;
                };
                let answered = train.datagrams().min(self.traffic.window);
                count += u64::try_from(answered)?;
                self.clients[key].answered_at = now;
                self.send(&self.clients[key], answered)?;
            }
            if next_check <= now {
                next_check = now + LOST;
                for key in 0..self.clients.len() {
                    if now.duration_since(self.clients[key].answered_at) >= LOST {
                        self.clients[key].answered_at = now;
                        self.send(&self.clients[key], self.traffic.window)?;
                    }
                }
            }
        }
    }
}
