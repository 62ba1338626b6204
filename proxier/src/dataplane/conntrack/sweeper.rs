//! Sweeping the flows of the kernel, which may lack the module for that.

use std::time::Duration;

use tracing::Level;

use super::{ConntrackClient, Flow, Stale, Swept};
use crate::cluster::model::{Family, Protocol};
use crate::dataplane::Failure;
use crate::util::clock;
use crate::util::conditions::{Coverage, LastingConditions};

/// The pause between two tries to reach a missing `nf_conntrack_netlink`: at each, the kernel runs
/// modprobe.
const PAUSE: Duration = Duration::from_secs(300);

/// Deletes stale flows, if the kernel can list them.
#[derive(Debug)]
pub(crate) struct Sweeper {
    client: ConntrackClient,
    /// No flows are swept before this time, because the kernel lacked the module.
    next: Duration,
    /// The missing module, once logged.
    missing: LastingConditions,
}

impl Sweeper {
    /// Opens the socket.
    ///
    /// # Errors
    /// If the kernel has no netfilter.
    pub(crate) fn open() -> Result<Self, Failure> {
        Ok(Self {
            client: ConntrackClient::open().map_err(Failure::netfilter_socket)?,
            next: Duration::ZERO,
            missing: LastingConditions::default(),
        })
    }

    /// Calls `each` for every TCP connection.
    ///
    /// # Errors
    /// If the kernel cannot list them.
    pub(crate) fn each_connection(&mut self, mut each: impl FnMut(Flow)) -> Result<(), Failure> {
        for family in [Family::V4, Family::V6] {
            self.client.each_flow(family, Protocol::Tcp, &mut each)?;
        }
        Ok(())
    }

    /// Deletes exactly the stale flows; none while the kernel lacks the module.
    ///
    /// # Errors
    /// If the kernel refuses. Some flows may be deleted then.
    pub(crate) fn sweep(&mut self, stale: &Stale) -> Result<Swept, Failure> {
        let now = clock::since_boot();
        if self.next > now {
            return Ok(Swept::default());
        }
        match self.client.sweep(stale) {
            Err(error)
                // nfnetlink answers EINVAL if the module is missing (`nfnetlink_rcv_msg`), and to
                // malformed requests too.
                if error.is_unsupported() || error.is_invalid() && self.client.is_missing() =>
            {
                self.next = now + PAUSE;
                let text = "the kernel has no nf_conntrack_netlink and could not load the module \
                            (kernel option CONFIG_NF_CT_NETLINK); stale UDP and SCTP flows stay until \
                            they time out";
                let kind = "missing modules";
                (self.missing).add(Coverage::All, Level::WARN, kind, text, now);
                Ok(Swept::default())
            }
            other => {
                self.missing.end(now);
                Ok(other?)
            }
        }
    }
}
