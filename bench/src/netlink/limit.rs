//! The limit of programming: the same messages in the same batches, encoded before the measurement.

use std::time::{Duration, Instant};

use ipvs_netlink::Change;
use ipvs_netlink::message::push_change;
use netlink::batch::Batch;
use netlink_sys::{Socket, SocketAddr, protocols};

/// Messages per datagram; `ipvs-netlink` sends the same number.
const BATCH: usize = 128;

/// Encodes all messages for the IPVS of netlink family `family`, then sends them and returns the time of
/// sending.
pub(crate) fn program(family: u16, changes: &[Change]) -> anyhow::Result<Duration> {
    let mut datagrams = Vec::new();
    for chunk in changes.chunks(BATCH) {
        let mut batch = Batch::new();
        for change in chunk {
            push_change(&mut batch, family, change)?;
        }
        batch.number_from(0);
        datagrams.push(batch.as_bytes().to_vec());
    }
    let mut socket = Socket::new(protocols::NETLINK_GENERIC)?;
    socket.bind_auto()?;
    let kernel = SocketAddr::new(0, 0);
    let mut answer = [0; 4096];
    let start = Instant::now();
    for datagram in &datagrams {
        socket.send_to(datagram, &kernel, 0)?;
        // Only the last message asks for an acknowledgement. The kernel answers earlier messages only
        // if they fail. The caller reads the table afterwards, and finds too few entries then.
        socket.recv(&mut &mut answer[..], 0)?;
    }
    Ok(start.elapsed())
}
