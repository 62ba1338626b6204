//! Clients of a Service, which show whether a disturbance costs connections.
//!
//! Ten connections stay open and get an answer ten times a second. Ten times a second, a new one is
//! opened. All use the virtual server of `default/kubernetes`, whose endpoint is an echo server on
//! the node.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use lab::net::PatientStream;
use serde::{Deserialize, Serialize};

/// The number of connections that stay open.
const OPEN: usize = 10;

/// The pause between two requests of a client.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection that gets no answer for this time, scaled by the cost of a system call, is lost.
const PATIENCE: Duration = Duration::from_secs(3);

/// The connections of a phase, and how many of them failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connections {
    /// Connections that were open at the beginning.
    pub(crate) open: usize,
    /// How many of the open ones were lost.
    pub(crate) lost: usize,
    /// New connections.
    pub(crate) tried: u32,
    /// How many of the new ones failed.
    pub(crate) failed: u32,
}

/// Running clients.
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    /// The counts after each round of requests.
    seen: Arc<Mutex<Connections>>,
    thread: JoinHandle<()>,
}

impl Clients {
    /// Opens connections to `address`.
    pub(super) fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let mut open = Vec::new();
        for _ in 0..OPEN {
            let stream = connect(address);
            open.push(stream.with_context(|| format!("connecting to {address}"))?);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Connections {
            open: open.len(),
            ..Connections::default()
        }));
        let (stops, counts) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                open.retain_mut(|stream| is_answered(stream).is_ok());
                let has_failed = connect(address).is_err();
                let mut seen = lock(&counts);
                seen.lost = seen.open - open.len();
                seen.tried += 1;
                seen.failed += u32::from(has_failed);
                drop(seen);
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { stop, seen, thread })
    }

    /// Ends the clients and returns their counts.
    pub(super) fn stop(self) -> Connections {
        self.stop.store(true, Ordering::Relaxed);
        // The panic hook has printed the message of a panic already.
        let _panicked = self.thread.join();
        *lock(&self.seen)
    }
}

fn lock(seen: &Mutex<Connections>) -> MutexGuard<'_, Connections> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a connection and uses it once.
fn connect(address: SocketAddr) -> std::io::Result<PatientStream> {
    // A standstill of the machine is no lost connection.
    let mut stream = PatientStream::connect(address, PATIENCE)?;
    // Otherwise Nagle's algorithm could hold a byte back until the previous one is acknowledged.
    stream.as_ref().set_nodelay(true)?;
    is_answered(&mut stream)?;
    Ok(stream)
}

/// Sends a byte and waits for its echo.
fn is_answered(stream: &mut PatientStream) -> std::io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])
}

/// A server that sends back what it receives. Dropping it stops it.
pub(super) struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// The pause between two readings of all connections: few wake-ups leave the processor to the proxy.
    const PAUSE: Duration = Duration::from_millis(5);

    pub(super) fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut streams: Vec<TcpStream> = Vec::new();
            while !stops.load(Ordering::Relaxed) {
                while let Ok((stream, _)) = listener.accept() {
                    if stream.set_nonblocking(true).is_ok() {
                        streams.push(stream);
                    }
                }
                streams.retain_mut(|stream| echo(stream).is_ok());
                std::thread::sleep(Self::PAUSE);
            }
        });
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The panic hook has printed the message of a panic already.
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends back what has arrived; fails at the end of the connection.
fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 64];
    match stream.read(&mut bytes) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(length) => stream.write_all(&bytes[..length]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lab::net::unused_port;

    use super::*;

    /// Waits until the clients have used all connections this often.
    fn await_rounds(clients: &Clients, count: u32) {
        let end = lock(&clients.seen).tried + count;
        while lock(&clients.seen).tried < end {
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn a_server_that_ends_costs_all_connections() {
        let address = (Ipv4Addr::LOCALHOST, unused_port()).into();
        let echo = Echo::start(address).unwrap();
        let clients = Clients::start(address).unwrap();
        await_rounds(&clients, 3);
        let seen = clients.stop();
        assert!(
            seen.tried > 0 && seen.failed == 0 && seen.lost == 0,
            "{seen:?}"
        );

        let clients = Clients::start(address).unwrap();
        drop(echo);
        // The first one may have begun before.
        await_rounds(&clients, 2);
        let seen = clients.stop();
        assert_eq!((seen.open, seen.lost), (OPEN, OPEN));
        assert!(seen.failed > 0, "{seen:?}");
    }
}
