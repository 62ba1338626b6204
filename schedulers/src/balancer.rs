//! A set of servers and the scheduler that chooses among them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::options::Options;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;
use crate::thresholds::Thresholds;

/// A virtual server: its servers, and the scheduler that is notified of every change to them.
///
/// ```
/// # fn main() -> Result<(), schedulers::Error> {
/// use schedulers::{Balancer, Options, Registry, Request};
///
/// let options = Options::default();
/// let scheduler = Registry::kernel().build("lc", &options)?;
/// let mut balancer = Balancer::new(scheduler, &options);
/// let a = balancer.add("10.0.0.1:80".parse().unwrap(), 1)?;
/// let b = balancer.add("10.0.0.2:80".parse().unwrap(), 1)?;
///
/// let request = Request {
///     source: "192.0.2.7".parse().unwrap(),
///     source_port: 40_000,
///     destination: "10.96.0.1".parse().unwrap(),
///     destination_port: 80,
///     at: std::time::Duration::ZERO,
/// };
/// // The newest server wins ties.
/// assert_eq!(balancer.pick(&request), Some(b));
/// balancer.connected(b)?;
/// assert_eq!(balancer.pick(&request), Some(a));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Methods with a [`ServerId`] return [`Error::NotFound`] if no server has that id. A removed server
/// exists while it has connections, so that their ends can be counted. Methods that change its weight,
/// thresholds or overload mark return [`Error::NotFound`] then. A call that fails changes nothing.
#[derive(Debug)]
pub struct Balancer<S = Box<dyn Scheduler>> {
    servers: Servers,
    scheduler: S,
}

impl<S: Scheduler> Balancer<S> {
    /// Creates a virtual server without servers, at time 0.
    pub fn new(scheduler: S, options: &Options) -> Self {
        Self::starting_at(scheduler, options, Duration::ZERO)
    }

    /// Creates a virtual server without servers, at time `at`.
    pub fn starting_at(mut scheduler: S, options: &Options, at: Duration) -> Self {
        let servers = Servers::new(options.family, options.flavour);
        // With an empty list, `bound` cannot fail for any scheduler of the kernel.
        let _ = scheduler.bound(&servers, at);
        Self { servers, scheduler }
    }

    /// Chooses a server for a new connection, or returns `None` to refuse the connection.
    ///
    /// A pick counts no connection: when the connection is established, call [`Balancer::connected`] or
    /// [`Balancer::opened`].
    pub fn pick(&mut self, request: &Request) -> Option<ServerId> {
        self.scheduler.pick(&self.servers, request)
    }

    /// Replaces the scheduler at time `at`, as `ipvsadm -E -s` does. The servers do not change.
    ///
    /// # Errors
    /// The reason why `scheduler` cannot work with these servers. The old scheduler stays.
    pub fn reschedule(&mut self, mut scheduler: S, at: Duration) -> Result<(), Error> {
        // Bind first, so that after an error the old scheduler is still in use.
        scheduler.bound(&self.servers, at)?;
        self.scheduler = scheduler;
        Ok(())
    }

    /// Adds a server at the head of the list.
    ///
    /// A removed server that still has connections keeps their counts, as a destination from the kernel's
    /// trash does (`ip_vs_trash_get_dest`). All other servers start without connections.
    ///
    /// # Errors
    /// [`Error::Weight`], [`Error::Exists`], [`Error::Full`].
    pub fn add(&mut self, address: SocketAddr, weight: u32) -> Result<ServerId, Error> {
        self.add_limited(address, weight, Thresholds::default())
    }

    /// Adds a server with connection thresholds; otherwise as [`Balancer::add`].
    ///
    /// # Errors
    /// [`Error::Weight`], [`Error::Exists`], [`Error::Full`].
    pub fn add_limited(
        &mut self,
        address: SocketAddr,
        weight: u32,
        thresholds: Thresholds,
    ) -> Result<ServerId, Error> {
        let id = self.servers.add(address, weight, thresholds)?;
        self.scheduler.added(&self.servers, id);
        Ok(id)
    }

    /// Removes a server. Its connections remain, and the caller continues to count when they end.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn remove(&mut self, id: ServerId) -> Result<(), Error> {
        let predecessor = self.servers.unlist(id)?;
        // The scheduler is notified before the server is forgotten, because lblcr copies its weight.
        self.scheduler.removed(&self.servers, id, predecessor);
        self.servers.forget_if_unused(id);
        Ok(())
    }

    /// Sets the weight. Setting the same weight again is a change, too: wrr starts its cycle again.
    ///
    /// # Errors
    /// [`Error::Weight`], [`Error::NotFound`].
    pub fn set_weight(&mut self, id: ServerId, weight: u32) -> Result<(), Error> {
        self.servers.set_weight(id, weight)?;
        self.scheduler.updated(&self.servers, id);
        Ok(())
    }

    /// Sets the connection thresholds, which may set or clear the overload mark.
    ///
    /// The scheduler is notified as for a change of the weight: the kernel has one command for both.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_thresholds(&mut self, id: ServerId, to: Thresholds) -> Result<(), Error> {
        self.servers.set_thresholds(id, to)?;
        self.scheduler.updated(&self.servers, id);
        Ok(())
    }

    /// Sets or clears the overload mark.
    ///
    /// If the server has thresholds, later connections may change the mark again.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_overloaded(&mut self, id: ServerId, overloaded: bool) -> Result<(), Error> {
        self.servers.set_overloaded(id, overloaded)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Sets both connection counts. The overload mark does not change.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_connections(
        &mut self,
        id: ServerId,
        active: u32,
        inactive: u32,
    ) -> Result<(), Error> {
        self.servers.set_connections(id, active, inactive)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Counts a new connection in an active state, such as TCP after the SYN.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn connected(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.opened(id, true)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Counts a new connection in an inactive state, such as every UDP flow.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn opened(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.opened(id, false)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Counts an inactive connection as active from now on.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn activated(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.moved(id, true)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Counts an active connection as inactive from now on, such as TCP after the first FIN.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn deactivated(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.moved(id, false)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Counts the end of an active connection.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn disconnected(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.closed(id, true)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Counts the end of an inactive connection.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn closed(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.closed(id, false)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Reports that at time `at` the server answered within `latency`. The kernel's schedulers ignore it.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn measured(&mut self, id: ServerId, latency: Duration, at: Duration) -> Result<(), Error> {
        self.servers.get(id).ok_or(Error::NotFound)?;
        self.scheduler.measured(&self.servers, id, latency, at);
        Ok(())
    }

    /// Returns the servers.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &S {
        &self.scheduler
    }
}
