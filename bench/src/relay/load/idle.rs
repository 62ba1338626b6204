//! Connections that stay open and do nothing.

use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

use super::{connect, exchange};

/// How long a relay has to become quiet.
const QUIET: Duration = Duration::from_millis(500);

/// Opens connections with one request each, waits, and calls `look` while all of them are open.
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
