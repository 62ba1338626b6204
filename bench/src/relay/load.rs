//! The load: clients that keep a relay busy and count its answers.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

pub(super) mod connections;
pub(super) mod datagrams;
pub(super) mod idle;
pub(super) mod requests;
pub(super) mod transfers;

/// The bytes of a request and of its answer.
const MESSAGE: [u8; 128] = [b'x'; 128];

/// The longest wait for events, after which a load checks whether its time is over.
const CHECK: Duration = Duration::from_millis(20);

/// Clients of one relay.
pub(super) trait Load {
    /// Works for `length` and returns the number of completed units.
    fn run(&mut self, length: Duration) -> anyhow::Result<u64>;
}

/// The percentiles of a latency.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) median: Duration,
    pub(super) p99: Duration,
}

/// Measures requests on one connection, one after the other, for `length`.
pub(super) fn latency(address: SocketAddrV4, length: Duration) -> anyhow::Result<Latency> {
    let mut stream = connect(address)?;
    let mut times = Vec::new();
    let end = Instant::now() + length;
    while Instant::now() < end {
        let start = Instant::now();
        exchange(&mut stream)?;
        times.push(start.elapsed());
    }
    ensure!(!times.is_empty(), "no request in {length:?}");
    times.sort();
    Ok(Latency {
        median: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
    })
}

fn connect(address: SocketAddrV4) -> anyhow::Result<TcpStream> {
    let patience = Duration::from_secs(5);
    let stream = TcpStream::connect_timeout(&SocketAddr::V4(address), patience)
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

/// Sends a request and reads its answer.
fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&MESSAGE)?;
    stream.read_exact(&mut [0; MESSAGE.len()])
}
