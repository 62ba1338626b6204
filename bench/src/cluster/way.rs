//! The way of a packet: how long a client on the node waits for a connection and for an answer.
//!
//! The Pods of one Service become addresses of the node, where a server sends bytes back. The client asks through the
//! Service and at a Pod in turns, so that a slow moment of the machine concerns both.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::objects::{PORT, TARGET_PORT};
use super::outcome::Latency;
use crate::process::ip;

/// The number of connections through the Service, and of those to a Pod.
const CONNECTIONS: usize = 1_000;

/// The number of measured requests on each connection.
const REQUESTS: usize = 3;

/// A connection without an answer for this time fails the measurement.
const PATIENCE: Duration = Duration::from_secs(30);

/// The times of clients: of a connection, from its first packet to the answer, and of a byte and its echo on an open one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Way {
    pub(crate) connection: Latency,
    pub(crate) request: Latency,
    /// To a Pod itself, on the same node: what the machine takes without a Service.
    pub(crate) pod_connection: Latency,
    pub(crate) pod_request: Latency,
}

impl Way {
    /// Measures the Service with this cluster IP and these Pods, in the network namespace of the calling thread.
    pub(super) fn measure(service: IpAddr, pods: &[IpAddr]) -> anyhow::Result<Self> {
        for pod in pods {
            ip(&format!("address add {pod} dev node0"))?;
        }
        let pod = *pods.first().context("a Service without Pods")?;
        let pod = SocketAddr::from((pod, TARGET_PORT));
        let service = SocketAddr::from((service, PORT));
        // Of both families.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, TARGET_PORT))?;
        let server = std::thread::spawn(move || echo(&listener));
        let mut times = [const { Vec::new() }; 4];
        let asked = (0..CONNECTIONS).try_for_each(|_| {
            let [connections, requests, pod_connections, pod_requests] = &mut times;
            ask(service, connections, requests)?;
            ask(pod, pod_connections, pod_requests)
        });
        // A connection without a request ends the server.
        drop(TcpStream::connect_timeout(&pod, PATIENCE)?);
        // The panic hook has printed the message of a panic already.
        let _panicked = server.join();
        asked?;
        let [connection, request, pod_connection, pod_request] =
            times.map(|times| Latency::of(times).unwrap_or_default());
        Ok(Self {
            connection,
            request,
            pod_connection,
            pod_request,
        })
    }
}

/// Opens a connection, sends requests, and adds their times.
fn ask(
    address: SocketAddr,
    connections: &mut Vec<Duration>,
    requests: &mut Vec<Duration>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let stream = TcpStream::connect_timeout(&address, PATIENCE);
    let mut stream = stream.with_context(|| format!("a client of {address}"))?;
    connections.push(start.elapsed());
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    // The first request waits until the server has accepted the connection.
    for number in 0..=REQUESTS {
        let start = Instant::now();
        stream.write_all(b"?")?;
        stream.read_exact(&mut [0])?;
        if number > 0 {
            requests.push(start.elapsed());
        }
    }
    Ok(())
}

/// Sends back each byte, on one connection after the other, until one sends nothing.
fn echo(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        let mut byte = [0];
        let mut is_asked = false;
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {
            is_asked = true;
        }
        if !is_asked {
            return;
        }
    }
}
