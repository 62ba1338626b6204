//! Connections in progress: they are closed, or left to expire.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipvs_netlink::Timeouts;

use crate::kernel::director::{Director, LONG};
use crate::kernel::sockets::Link;
use crate::trace::Name;

/// The shortest timeouts that the kernel accepts.
const SHORT: Timeouts = Timeouts {
    tcp_secs: 1,
    tcp_fin_secs: 1,
    udp_secs: 1,
};

/// The pause between two checks whether connections have expired.
const LOOK: Duration = Duration::from_millis(50);

/// A connection that IPVS has not forgotten.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The server that got it.
    pub(crate) server: Name,
    /// The client's address.
    pub(crate) source: SocketAddr,
    /// The address that the client connected to.
    pub(crate) destination: SocketAddr,
    /// Both ends of a TCP connection.
    pub(crate) link: Option<Link>,
    /// Whether neither side has closed it.
    pub(crate) is_open: bool,
    /// Whether the client has closed it.
    pub(crate) is_closed_by_client: bool,
}

/// The side that closes a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closer {
    /// The client, which leaves the connection in CLOSE_WAIT in IPVS.
    Client,
    /// The server, which leaves the connection in FIN_WAIT in IPVS.
    Server,
}

impl Director {
    /// Returns the indices of the TCP connections that can be closed.
    pub(crate) fn open_links(&self) -> Vec<usize> {
        let is_open = |&index: &usize| {
            let connection = &self.tracked[index];
            // IPVS drops packets to removed servers.
            let is_listed = self.servers[usize::from(connection.server.0)].is_listed;
            connection.link.is_some() && connection.is_open && is_listed
        };
        (0..self.tracked.len()).filter(is_open).collect()
    }

    /// Closes one side of a TCP connection.
    pub(crate) fn close(&mut self, connection: usize, closer: Closer) -> Result<()> {
        let connection = self
            .tracked
            .get_mut(connection)
            .context("no such connection")?;
        let link = connection.link.as_ref().context("not a TCP connection")?;
        connection.is_open = false;
        match closer {
            Closer::Client => {
                connection.is_closed_by_client = true;
                link.client.shutdown(Shutdown::Write)?;
            }
            Closer::Server => link.server.shutdown(Shutdown::Write)?,
        }
        self.observe()
    }

    /// Returns the indices of the connections that [`Director::expire`] can end.
    pub(crate) fn expirable(&self) -> Vec<usize> {
        let can_expire = |&index: &usize| {
            let connection = &self.tracked[index];
            let server = &self.servers[usize::from(connection.server.0)];
            // `expire` sends a packet to restart the timer. After its FIN the client cannot send, and
            // IPVS drops packets to removed servers.
            server.is_listed && !connection.is_closed_by_client
        };
        (0..self.tracked.len()).filter(can_expire).collect()
    }

    /// Lets connections expire and waits until they have. The indices must be in ascending order.
    pub(crate) fn expire(&mut self, expirable: &[usize]) -> Result<()> {
        self.observe()?;
        self.ipvs.set_timeouts(&SHORT)?;
        let before = self.total();
        // Kept open until all have expired: closing sends a packet, which would restart the timer.
        let mut dying = Vec::new();
        for &index in expirable.iter().rev() {
            let mut connection = self.tracked.swap_remove(index);
            match &mut connection.link {
                Some(link) => link.poke()?,
                None => {
                    let reached = self
                        .sockets
                        .send(connection.source, connection.destination)?;
                    let server = self.server(connection.server)?.address;
                    ensure!(
                        reached == Some(server),
                        "a UDP flow changed its server to {reached:?}"
                    );
                }
            }
            dying.push(connection);
        }
        let expected = before.saturating_sub(u32::try_from(expirable.len())?);
        let expired = lab::await_some(LOOK, || {
            let observed = self.observe();
            (observed.is_err() || self.total() <= expected).then_some(observed)
        });
        expired.context("connections do not expire")??;
        self.ipvs.set_timeouts(&LONG)?;
        Ok(())
    }

    fn total(&self) -> u32 {
        let total = |name: &Name| {
            let now = self.servers[usize::from(name.0)].load.connections();
            now.active + now.inactive
        };
        self.list.iter().map(total).sum()
    }
}
