//! The removal of what a kube-proxy that serves again does not use.
//!
//! It takes over all virtual servers but those of inside marks. IPVS finds the packets of an established
//! connection by their addresses and ports, so such a connection continues without a mark. But it ends with
//! its virtual server: IPVS drops packets to a destination that is deleted, and no other virtual server can
//! have the connection. So these virtual servers are deleted when their last connection has ended.
//! kube-proxy cannot delete them: it asks for address 0.0.0.0, port 0.

use std::time::{Duration, Instant};

use super::Cleanup;
use crate::dataplane::ipvs::Kernel as _;
use crate::dataplane::ipvs::op::Op;

/// The pause between two counts of connections.
const PAUSE: Duration = Duration::from_secs(1);

impl Cleanup<'_> {
    /// Removes the objects of ours that kube-proxy does not use. Returns whether all Ops succeeded.
    pub(super) fn hand_over(&mut self) -> anyhow::Result<bool> {
        // The rules come first: without them no packet gets an inside mark, so kube-proxy's virtual server
        // takes the next connection, and not the marked one that the Ops delete.
        self.remove_rules()?;
        let ops = self.planned()?.into_iter();
        let (servers, others): (Vec<Op>, Vec<Op>) =
            ops.partition(|op| matches!(op, Op::DeleteService(_)));
        let is_done = self.apply(&others);
        self.proxier.kernel().release_carrier()?;
        Ok(self.delete_unused(servers)? && is_done)
    }

    /// Deletes each of these virtual servers when it has no connection any more, or at the end of the time.
    fn delete_unused(&mut self, mut servers: Vec<Op>) -> anyhow::Result<bool> {
        let limit = self.flags.drain_timeout.0;
        let end = Instant::now() + limit;
        let mut is_done = true;
        let mut is_announced = false;
        while !servers.is_empty() {
            let mut used = Vec::new();
            if Instant::now() < end {
                for op in &servers {
                    if self.connections(op)? > 0 {
                        used.push(*op);
                    }
                }
            }
            servers.retain(|op| !used.contains(op));
            is_done &= self.apply(&servers);
            if !used.is_empty() {
                if !std::mem::replace(&mut is_announced, true) {
                    tracing::info!(
                        "all else is removed; {} virtual servers of inside marks stay until their \
                         connections end, at most {}",
                        used.len(),
                        humantime::format_duration(limit)
                    );
                }
                std::thread::sleep(PAUSE);
            }
            servers = used;
        }
        Ok(is_done)
    }

    /// Returns the number of established connections of the virtual server that `op` deletes.
    ///
    /// UDP has none, and its clients do not notice when the next datagram goes to another endpoint.
    fn connections(&mut self, op: &Op) -> anyhow::Result<u32> {
        let Some(key) = op.service_key() else {
            return Ok(0);
        };
        let found = self.proxier.kernel().virtual_server(&key)?;
        let counts = found.iter().flat_map(|found| &found.connections);
        Ok(counts.map(|counted| counted.active).sum())
    }
}
