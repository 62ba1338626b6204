//! A scheduler that is not in the crate: [`PeakEwma`] is registered under its own name and chooses
//! servers for real TCP connections, which a small relay forwards.
//!
//! ```text
//! clients ──TCP──▶ relay ──TCP──▶ fast, fast, slow
//!                    │ pick, connected, measured, disconnected
//!                    ▼
//!                 Balancer ── "peak-ewma"
//! ```
//!
//! `cargo run -p schedulers --example custom` makes 120 connections with the kernel's `rr` and 120 with
//! `peak-ewma`, and prints how many each server got.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a program may read the clock and print; the crate may not"
)]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use schedulers::{Balancer, Options, Registry, Request, ServerId};

#[path = "custom/peak_ewma.rs"]
mod peak_ewma;

use peak_ewma::PeakEwma;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long each server waits before it answers.
const DELAYS: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(1),
    Duration::from_millis(300),
];
const CLIENTS: usize = 6;
const CONNECTIONS_EACH: usize = 20;
/// The limit for each step of a connection; the program then ends with an error.
const TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    for scheduler in ["rr", "peak-ewma"] {
        let served = serve(scheduler)?;
        println!("{scheduler}:");
        for (delay, count) in DELAYS.iter().zip(served) {
            println!("  the server that takes {delay:?} got {count} connections");
        }
    }
    Ok(())
}

/// Returns a registry of the kernel's schedulers and `peak-ewma`.
fn registry() -> Result<Registry> {
    let mut registry = Registry::kernel();
    registry.register("peak-ewma", |options| Box::new(PeakEwma::new(options)))?;
    Ok(registry)
}

/// Lets all clients connect through a relay and returns how many connections each server got.
fn serve(scheduler: &str) -> Result<[usize; DELAYS.len()]> {
    let options = Options::default();
    let mut balancer = Balancer::new(registry()?.build(scheduler, &options)?, &options);
    let mut servers = BTreeMap::new();
    for (number, delay) in DELAYS.into_iter().enumerate() {
        let address = start_server(delay)?;
        servers.insert(balancer.add(address, 1)?.index(), number);
    }
    let relay = Relay::start(balancer)?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| thread::spawn(move || client(relay)))
        .collect();
    let mut served = [0; DELAYS.len()];
    for client in clients {
        for index in client.join().map_err(|_| "a client panicked")?? {
            served[servers[&index]] += 1;
        }
    }
    Ok(served)
}

/// Makes one connection after the other; returns the [`ServerId::index`] of the server of each.
fn client(relay: SocketAddr) -> Result<Vec<usize>> {
    (0..CONNECTIONS_EACH)
        .map(|_| {
            let mut relay = TcpStream::connect_timeout(&relay, TIMEOUT)?;
            relay.set_read_timeout(Some(TIMEOUT))?;
            let mut answer = String::new();
            relay.read_to_string(&mut answer)?;
            Ok(answer.trim().parse()?)
        })
        .collect()
}

/// Starts a server that waits, answers, and closes the connection.
fn start_server(delay: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(move || {
                thread::sleep(delay);
                connection.and_then(|mut client| client.write_all(b"served"))
            });
        }
    });
    Ok(address)
}

/// Forwards connections to servers and reports to the balancer when they start and end.
struct Relay {
    balancer: Mutex<Balancer>,
    started: Instant,
}

impl Relay {
    fn start(balancer: Balancer) -> Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let relay = Arc::new(Self {
            balancer: Mutex::new(balancer),
            started: Instant::now(),
        });
        thread::spawn(move || {
            for client in listener.incoming() {
                let relay = Arc::clone(&relay);
                // If forwarding fails, the client's connection closes without an answer: the client fails.
                thread::spawn(move || client.map(|client| relay.pass_on(client)));
            }
        });
        Ok(address)
    }

    fn pass_on(&self, mut client: TcpStream) -> Result<()> {
        let (source, destination) = (client.peer_addr()?, client.local_addr()?);
        let request = Request {
            source: source.ip(),
            source_port: source.port(),
            destination: destination.ip(),
            destination_port: destination.port(),
            at: self.started.elapsed(),
        };
        let (id, address) = self.choose(&request)?;
        let started = self.started.elapsed();
        let answer = ask(address);
        let answered = self.started.elapsed();
        self.with_balancer(|balancer| {
            balancer.disconnected(id)?;
            balancer.measured(id, answered - started, answered)
        })?;
        answer?;
        write!(client, "{}", id.index())?;
        Ok(())
    }

    /// Chooses a server and counts the connection.
    fn choose(&self, request: &Request) -> Result<(ServerId, SocketAddr)> {
        self.with_balancer(|balancer| {
            let id = balancer.pick(request).ok_or(schedulers::Error::NotFound)?;
            balancer.connected(id)?;
            let server = balancer.servers().get(id);
            let server = server.ok_or(schedulers::Error::NotFound)?;
            Ok((id, SocketAddr::new(server.address(), server.port())))
        })
    }

    fn with_balancer<T>(
        &self,
        call: impl FnOnce(&mut Balancer) -> std::result::Result<T, schedulers::Error>,
    ) -> Result<T> {
        let mut balancer = self.balancer.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(call(&mut balancer)?)
    }
}

fn ask(server: SocketAddr) -> Result<()> {
    let mut server = TcpStream::connect_timeout(&server, TIMEOUT)?;
    server.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_are_served() {
        let all = CLIENTS * CONNECTIONS_EACH;
        assert_eq!(serve("rr").unwrap(), [all / 3; 3]);
        assert_eq!(serve("peak-ewma").unwrap().iter().sum::<usize>(), all);
    }

    /// The servers take exactly their delays, which they do not on a busy machine.
    #[test]
    fn peak_ewma_avoids_the_slow_server() {
        let options = Options::default();
        let scheduler = registry().unwrap().build("peak-ewma", &options).unwrap();
        let mut balancer = Balancer::new(scheduler, &options);
        let servers = [1, 2, 3].map(|host| {
            let address = SocketAddr::from(([10, 0, 0, host], 80));
            balancer.add(address, 1).unwrap()
        });
        let mut served = [0; DELAYS.len()];
        let mut at = Duration::ZERO;
        for port in 0..1_000 {
            let request = Request {
                source: [10, 0, 1, 1].into(),
                source_port: port,
                destination: [10, 0, 2, 1].into(),
                destination_port: 80,
                at,
            };
            let id = balancer.pick(&request).unwrap();
            let number = servers.iter().position(|it| *it == id).unwrap();
            served[number] += 1;
            balancer.connected(id).unwrap();
            at += DELAYS[number];
            balancer.disconnected(id).unwrap();
            balancer.measured(id, DELAYS[number], at).unwrap();
        }
        // Both draws are the slow server one time in nine.
        assert!((50..200).contains(&served[2]), "{served:?}");
    }
}
