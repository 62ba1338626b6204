//! Connections that live: they are closed, or left to expire.

use std::net::{Shutdown, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ipvs_netlink::Timeouts;

use crate::kernel::director::{Director, LONG};
use crate::kernel::doors::Link;
use crate::kernel::now;
use crate::trace::Name;

/// The shortest there is.
const SHORT: Timeouts = Timeouts {
    tcp_secs: 1,
    tcp_fin_secs: 1,
    udp_secs: 1,
};

/// How long to wait for connections to expire, and how often to look.
const EXPIRY: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// A connection that lives.
#[derive(Debug)]
pub(crate) struct Live {
    /// Where it went.
    pub(crate) server: Name,
    /// Whence it came.
    pub(crate) source: SocketAddr,
    /// What it asked for.
    pub(crate) destination: SocketAddr,
    /// Both ends, of TCP.
    pub(crate) link: Option<Link>,
    /// No side has closed it.
    pub(crate) is_open: bool,
    /// The client has.
    pub(crate) is_closed_by_client: bool,
}

/// Who closes a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closer {
    /// The client, which leaves it in CLOSE_WAIT.
    Client,
    /// The server, which leaves it in FIN_WAIT.
    Server,
}

impl Director {
    /// The TCP connections that a side could close.
    pub(crate) fn open_links(&self) -> Vec<usize> {
        let is_open = |&index: &usize| {
            let live = &self.lives[index];
            // Nothing gets through to removed servers.
            let is_listed = self.servers[usize::from(live.server.0)].is_listed;
            live.link.is_some() && live.is_open && is_listed
        };
        (0..self.lives.len()).filter(is_open).collect()
    }

    /// One side of a TCP connection closes it.
    pub(crate) fn close(&mut self, live: usize, closer: Closer) -> Result<()> {
        let live = self.lives.get_mut(live).context("no such connection")?;
        let link = live.link.as_ref().context("not a TCP connection")?;
        live.is_open = false;
        match closer {
            Closer::Client => {
                live.is_closed_by_client = true;
                link.client.shutdown(Shutdown::Write)?;
            }
            Closer::Server => link.server.shutdown(Shutdown::Write)?,
        }
        self.observe()
    }

    /// The connections that [`Director::expire`] can end.
    pub(crate) fn mortals(&self) -> Vec<usize> {
        let is_mortal = |&index: &usize| {
            let live = &self.lives[index];
            let server = &self.servers[usize::from(live.server.0)];
            // A connection that the client closed keeps a timer that nobody can set, and those of
            // removed servers get no packet through.
            server.is_listed && !live.is_closed_by_client
        };
        (0..self.lives.len()).filter(is_mortal).collect()
    }

    /// Lets connections expire, and waits until they have. `mortals` are indices in ascending
    /// order.
    pub(crate) fn expire(&mut self, mortals: &[usize]) -> Result<()> {
        self.observe()?;
        self.ipvs.set_timeouts(&SHORT)?;
        let before = self.total();
        // Kept open until then: closing is a packet, and each packet prolongs.
        let mut dying = Vec::new();
        for &index in mortals.iter().rev() {
            let mut live = self.lives.swap_remove(index);
            match &mut live.link {
                Some(link) => link.poke()?,
                None => {
                    let reached = self.doors.send(live.source, live.destination)?;
                    let server = self.server(live.server)?.address;
                    ensure!(
                        reached == Some(server),
                        "a flow changed its server: {reached:?}"
                    );
                }
            }
            dying.push(live);
        }
        let expected = before.saturating_sub(u32::try_from(mortals.len())?);
        let begun = now();
        while self.total() > expected {
            ensure!(
                begun.elapsed() < lab::patience(EXPIRY),
                "connections outlive their timeout"
            );
            sleep(LOOK);
            self.observe()?;
        }
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
