//! Connections that stay open and do nothing.

use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

use super::{connect, exchange};

/// The time after which a relay has no more work for the new connections.
const QUIET: Duration = Duration::from_millis(500);

/// Opens connections with one request each, waits, and calls `look` while all are open.
pub(in crate::relay) fn hold<T>(
    address: SocketAddrV4,
    connections: usize,
    look: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut clients: Vec<TcpStream> = Vec::with_capacity(connections);
    for number in 1..=connections {
        let mut client = connect(address)?;
        exchange(&mut client).with_context(|| format!("connection {number}"))?;
        clients.push(client);
    }
    std::thread::sleep(QUIET);
    look()
}
