//! Servers and the scheduler that chooses among them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;
use crate::options::Options;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::server::ServerId;
use crate::servers::Servers;
use crate::thresholds::Thresholds;

/// A virtual server: its servers, and its scheduler, which hears of every change to them.
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
/// Methods that take a [`ServerId`] answer [`Error::NotFound`] when it names no server. Those that
/// count connections also take a removed server as long as it has connections; the others do not.
/// A refused call changes nothing.
#[derive(Debug)]
pub struct Balancer<S = Box<dyn Scheduler>> {
    servers: Servers,
    scheduler: S,
}

impl<S: Scheduler> Balancer<S> {
    /// Without servers; its time starts at 0.
    pub fn new(scheduler: S, options: &Options) -> Self {
        Self::starting_at(scheduler, options, Duration::ZERO)
    }

    /// Without servers, at time `at`.
    pub fn starting_at(mut scheduler: S, options: &Options, at: Duration) -> Self {
        let servers = Servers::new(options.family, options.flavour);
        // No scheduler has a reason to refuse no servers; one that does will find nothing to pick.
        let _ = scheduler.bound(&servers, at);
        Self { servers, scheduler }
    }

    /// Chooses a server for a new connection; nothing refuses it.
    ///
    /// Counts nothing: say [`Balancer::connected`] or [`Balancer::opened`] when the connection comes
    /// about.
    pub fn pick(&mut self, request: &Request) -> Option<ServerId> {
        self.scheduler.pick(&self.servers, request)
    }

    /// Replaces the scheduler, at time `at` (`ipvsadm -E -s`). Servers stay as they are.
    ///
    /// # Errors
    /// Why `scheduler` cannot work with these servers; the old one stays.
    pub fn reschedule(&mut self, mut scheduler: S, at: Duration) -> Result<(), Error> {
        scheduler.bound(&self.servers, at)?;
        self.scheduler = scheduler;
        Ok(())
    }

    /// Adds a server at the head of the list.
    ///
    /// A server that was removed while it had connections and still has some comes back with them, as
    /// from the kernel's trash; others start with none.
    ///
    /// # Errors
    /// [`Error::Weight`], [`Error::Exists`], [`Error::Full`].
    pub fn add(&mut self, address: SocketAddr, weight: u32) -> Result<ServerId, Error> {
        self.add_limited(address, weight, Thresholds::default())
    }

    /// Adds a server that takes a limited number of connections; otherwise as [`Balancer::add`].
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

    /// Removes a server. Its connections live on, and their ends are still to be counted.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn remove(&mut self, id: ServerId) -> Result<(), Error> {
        let predecessor = self.servers.unlist(id)?;
        self.scheduler.removed(&self.servers, id, predecessor);
        self.servers.forget_if_unused(id);
        Ok(())
    }

    /// Sets the weight. Setting it to what it is also is a change: wrr starts over.
    ///
    /// # Errors
    /// [`Error::Weight`], [`Error::NotFound`].
    pub fn set_weight(&mut self, id: ServerId, weight: u32) -> Result<(), Error> {
        self.servers.set_weight(id, weight)?;
        self.scheduler.updated(&self.servers, id);
        Ok(())
    }

    /// Sets the connection thresholds, which may mark or unmark the server. For the scheduler it is
    /// a change as one of the weight is.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_thresholds(&mut self, id: ServerId, to: Thresholds) -> Result<(), Error> {
        self.servers.set_thresholds(id, to)?;
        self.scheduler.updated(&self.servers, id);
        Ok(())
    }

    /// Marks or unmarks the server as overloaded.
    ///
    /// With thresholds the mark follows the connections from then on.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_overloaded(&mut self, id: ServerId, overloaded: bool) -> Result<(), Error> {
        self.servers.set_overloaded(id, overloaded)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// Sets both connection counts. The overload mark stays as it is.
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

    /// A connection exists from now on, in an active state, as after the SYN of a TCP connection.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn connected(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.opened(id, true)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// A connection exists from now on, in no active state, as every UDP flow.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn opened(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.opened(id, false)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// An inactive connection became active.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn activated(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.moved(id, true)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// An active connection became inactive, as after the first FIN.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn deactivated(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.moved(id, false)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// An active connection is gone.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn disconnected(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.closed(id, true)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// An inactive connection is gone.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn closed(&mut self, id: ServerId) -> Result<(), Error> {
        self.servers.closed(id, false)?;
        self.scheduler.counted(&self.servers, id);
        Ok(())
    }

    /// The server took `latency` to answer, known at time `at`. The kernel's schedulers do not care.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn measured(&mut self, id: ServerId, latency: Duration, at: Duration) -> Result<(), Error> {
        self.servers.get(id).ok_or(Error::NotFound)?;
        self.scheduler.measured(&self.servers, id, latency, at);
        Ok(())
    }

    /// The servers.
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &S {
        &self.scheduler
    }
}
